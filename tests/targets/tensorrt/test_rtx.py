"""Engines that TensorRT for RTX really builds here, without a GPU, and what is read in them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgewright.build.pipeline import deploy
from edgewright.bundle import read_manifest
from edgewright.bundle.manifest import StageEntry
from edgewright.dialects import tensorrt
from edgewright.errors import TargetMismatchError, ToolError, UnsupportedFormatError
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models._policy import PolicyBounds, build_policy
from edgewright.models._policy_features import build_featured
from edgewright.quant.apply import quantizable, quantize_stage
from edgewright.quant.recipe import stored_recipe
from edgewright.quant.recipe_file import load_recipe
from edgewright.runtime.llm import LLM
from edgewright.targets.backend import StageWork
from edgewright.targets.platform import find_platform
from edgewright.targets.tensorrt import BACKEND, rtx
from edgewright.targets.tensorrt.backend import NOT_RUN
from edgewright.targets.tensorrt.inspect import Report, _types, inspect
from edgewright.targets.tensorrt.plan import plan_of
from edgewright.targets.tensorrt.rtx import Network
from edgewright.targets.tensorrt.tool import rtx_version
from policy_goldens import policy_checkpoint
from quantizer_policy_cases import observations_of, quantized
from tensorrt_cases import HALF, IDS, checkpoint_of, logits, stage_in

pytest.importorskip("tensorrt_rtx_bindings")


def compiled(stage, folder: Path, platform: str) -> tuple[StageEntry, dict[str, object]]:  # type: ignore[no-untyped-def]
    """Write a lowered stage, build its engine, and return its entry and report."""
    lowered = tensorrt.lower(stage)
    write_stage(lowered, folder / "stages" / "s")
    work = StageWork(
        "s", folder, "stages/s", lowered.contract, platform=find_platform(platform), options={"builder": "rtx"}
    )
    entry = BACKEND.compile(work)
    return entry, json.loads((folder / "stages" / "s" / "engine.report.json").read_text(encoding="utf-8"))


#: Recipe, platform, what products on codes compute on, and the type of the codes in the engine; `bundle` is in FP8.
BUILDS = {
    "float16": ("rtx-4090", {}, None),
    "int4": ("rtx-4090", {}, "int4"),
    "int8": ("rtx-4090", {"int8": 7}, "int8"),
    "nvfp4": ("rtx-5090", {"fp4_e2m1": 7}, "fp4_e2m1"),
}


@pytest.mark.parametrize("recipe", BUILDS)
def test_a_language_model_is_built_and_computes_on_its_codes(recipe: str, tmp_path: Path) -> None:
    platform, products, codes = BUILDS[recipe]
    entry, report = compiled(stage_in(checkpoint_of(recipe)), tmp_path / "b", platform)
    assert entry.machine is not None
    assert (entry.runtime, entry.machine.engine) == ("tensorrt", "tensorrt-rtx")
    assert entry.machine.arch == {"rtx-4090": "sm89", "rtx-5090": "sm120"}[platform]
    assert report["products_on_codes"] == products
    assert set(report["bytes_of_codes_in_engine"]) >= ({codes} if codes else set())
    assert report["tensors_compared"] > 100
    assert report["not_checked"] == ["the engine was not run: there is no GPU of its kind here"]
    assert (tmp_path / "b" / str(entry.engine)).stat().st_size > 100_000


def test_a_denoise_stage_is_built(tmp_path: Path) -> None:
    stage = build_policy(policy_checkpoint("pi05"), bounds=PolicyBounds(prefix=60, horizon=6))["denoise"]
    quantize_stage(stage, load_recipe("float16"))
    entry, report = compiled(stage, tmp_path, "rtx-4090")
    assert entry.settings["profiles"] == ["frame"]
    assert report["tensors_compared"] > 200


def test_a_vision_stage_is_built_in_fp8(tmp_path: Path) -> None:
    checkpoint = policy_checkpoint("pi05")
    recipe = "body: {format: fp8, group: tensor}\nactivations: {format: fp8, mode: static}\n" + HALF
    observations = observations_of(checkpoint, tmp_path / "seen", frames=1)
    made = quantized(tmp_path / "made", checkpoint, recipe, observations)
    stages = build_policy(made, bounds=PolicyBounds(prefix=60, horizon=6))
    modules = {name: [(use.module, use.kind) for use in quantizable(stage)] for name, stage in stages.items()}
    quantize_stage(stages["vision"], stored_recipe("stored").stage_choices(modules)["vision"])
    _, report = compiled(stages["vision"], tmp_path / "b", "rtx-4090")
    assert report["products_on_codes"] == {"fp8_e4m3": 12}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rtx")
    source = checkpoint_of("fp8").path
    deploy(
        source,
        folder / "one",
        recipe="stored",
        target="tensorrt",
        platform=find_platform("rtx-4090"),
        options={"builder": "rtx", "workspace": "64"},
        max_context=32,
        verify=False,
    )
    return folder / "one"


def test_the_plan_says_what_it_is_made_of(bundle: Path) -> None:
    files = read_manifest(bundle).files
    plan = json.loads((bundle / "stages" / "llm" / "engine.plan.json").read_text(encoding="utf-8"))
    assert plan["sha256"] == {name: files[f"stages/llm/{name}"]["sha256"] for name in ("model.onnx", "weights.bin")}
    assert plan["versions"]["tensorrt-rtx"] == rtx_version() != ""
    assert plan["workspace_bytes"] == 64 << 20
    assert plan["strongly_typed"] is True
    report = json.loads((bundle / "stages" / "llm" / "engine.report.json").read_text(encoding="utf-8"))
    assert report["products_on_codes"] == {"fp8_e4m3": 7}
    assert set(report["bytes_of_codes_in_engine"]) == {"fp8_e4m3"}
    assert report["not_checked"] == ["the engine was not run: there is no GPU of its kind here"]


def test_the_engine_is_not_loaded_here(bundle: Path) -> None:
    with pytest.raises(TargetMismatchError, match="The bundle was compiled for sm89 and this is"):
        LLM.load(bundle)


def test_the_stand_in_reads_the_shipped_bytes(bundle: Path, tmp_path: Path) -> None:
    entry = read_manifest(bundle).stages["llm"]
    own = Path(shutil.copytree(bundle, tmp_path / "own"))
    weights = own / "stages" / "llm" / "weights.bin"
    data = bytearray(weights.read_bytes())
    for place in range(0, len(data), 64):
        data[place] ^= 0x10
    weights.unlink()
    weights.write_bytes(bytes(data))
    found = [BACKEND.stand_in(root, entry, 1) for root in (bundle, own)]
    assert [words for _, words in found] == [NOT_RUN, NOT_RUN]
    assert found[0][0].contract == entry.contract
    rows = [logits(engine, IDS[:8], prompt=8) for engine, _ in found]
    assert np.isfinite(rows[0]).all()
    assert not np.array_equal(*rows)


def parsed(lowered, folder: Path) -> tuple[onnx.ModelProto, Network]:  # type: ignore[no-untyped-def]
    """Return a lowered stage's graph, and what TensorRT's parser makes of it."""
    write_stage(lowered, folder)
    trt, log = rtx._module(), rtx._log(rtx._module())
    builder = trt.Builder(log)
    return (
        onnx.load(folder / MODEL_FILE, load_external_data=False),
        Network(trt, rtx._parsed(trt, builder, folder / MODEL_FILE, log), [builder]),
    )


@pytest.mark.parametrize("case", ["mxfp8", "a loop"])
def test_every_tensor_is_compared(case: str, tmp_path: Path) -> None:
    """Those after TensorRT's own ops, whose types ONNX doesn't know, and those inside of a loop, too."""
    if case == "mxfp8":
        stage = stage_in(checkpoint_of(case))
    else:
        made = policy_checkpoint("pi05")
        bounds = PolicyBounds(prefix=60, horizon=6)
        stage = build_featured(made, made.spec, {"loop": "graph"}, bounds=bounds)[0]["denoise"]
        quantize_stage(stage, load_recipe("float16"))
    model, network = parsed(tensorrt.lower(stage), tmp_path / "s")
    report = Report()
    _types(model, network, report)
    inner = [a.g for node in model.graph.node for a in node.attribute if a.HasField("g")]
    assert len(inner) == (case == "a loop")
    nodes = [node for graph in (model.graph, *inner) for node in graph.node if node.op_type != "Constant"]
    assert report.tensors == sum(len(node.output) for node in nodes)
    assert report.unchecked == []
    last = [name for node in nodes if node.op_type == "MatMul" for name in node.output][-1]
    network.types[last] = "INT32"
    with pytest.raises(ToolError, match=f"TensorRT computes {last} in INT32 where the graph says"):
        _types(model, network, Report())


def report_of(bundle: Path, change) -> None:  # type: ignore[no-untyped-def]
    """Inspect the engine again after a change of graph, contract, network or engine."""
    folder = bundle / "stages" / "llm"
    model = onnx.load(folder / MODEL_FILE, load_external_data=False)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    names = {
        value.name: onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type) for value in inferred.value_info
    }
    contract = read_manifest(bundle).stages["llm"].contract
    network = Network.__new__(Network)
    network.types = names
    for part in ("inputs", "outputs"):
        tensors = {tensor.name: tensor for tensor in getattr(contract, part)}
        shapes = {
            name: tuple(32 if dim == "capacity" else dim if isinstance(dim, int) else -1 for dim in tensor.shape)
            for name, tensor in tensors.items()
        }
        kinds = {name: {"float32": "FLOAT"}.get(t.dtype, t.dtype.upper()) for name, t in tensors.items()}
        setattr(network, part, {name: (kinds[name], shapes[name]) for name in tensors})
    given = [contract, network, (folder / "engine.trt").read_bytes(), plan_of("llm", contract, "8.9")]
    change(given)
    inspect(folder, given[3], *given[:3])


def wrong_type(given) -> None:  # type: ignore[no-untyped-def]
    name = next(name for name in given[1].types if "q_proj/Linear" in name)
    given[1].types[name] = "BFLOAT16"


def wrong_output(given) -> None:  # type: ignore[no-untyped-def]
    given[1].outputs["logits"] = ("FLOAT16", given[1].outputs["logits"][1])


def fixed_batch(given) -> None:  # type: ignore[no-untyped-def]
    given[1].inputs["past_lengths"] = ("INT64", (1,))


def missing_input(given) -> None:  # type: ignore[no-untyped-def]
    del given[1].inputs["past_lengths"]


def wrong_gpu(given) -> None:  # type: ignore[no-untyped-def]
    given[3] = replace(given[3], capability="8.6")


def widened_weights(given) -> None:  # type: ignore[no-untyped-def]
    given[2] = given[2].replace(b"type=fp8_e4m3", b"type=half")


def widened_inputs(given) -> None:  # type: ignore[no-untyped-def]
    """Products read their rounded inputs as halves; weights stay as they are."""
    lines = given[2].split(b"\n")
    given[2] = b"\n".join(
        line.replace(b"type=fp8_e4m3", b"type=half") if b"const_payload_size" not in line else line for line in lines
    )


def no_text(given) -> None:  # type: ignore[no-untyped-def]
    given[2] = b"\0" * 1000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (wrong_type, "in BFLOAT16 where the graph says"),
        (wrong_output, "TensorRT reads logits as FLOAT16"),
        (fixed_batch, r"TensorRT reads past_lengths as INT64 \[1\] where the contract says INT64 \['batch'\]"),
        (missing_input, "past_lengths differ"),
        (wrong_gpu, "The engine is made for sm89, not sm86"),
        (widened_weights, "the builder widened weights"),
        (widened_inputs, "where the graph has fp8_e4m3 on both sides"),
    ],
)
def test_what_differs_is_named(change, words: str, bundle: Path) -> None:  # type: ignore[no-untyped-def]
    report_of(bundle, lambda given: None)
    report_of(bundle, no_text)  # that is written down as not checked
    with pytest.raises(ToolError, match=words):
        report_of(bundle, change)


def test_formats_that_the_gpu_lacks_are_refused_with_the_layer(tmp_path: Path) -> None:
    stage = stage_in(checkpoint_of("nvfp4 weights"))
    with pytest.raises(UnsupportedFormatError, match=r"embed_tokens.*FLOAT4E2M1.*from compute capability 10\.0 on"):
        compiled(stage, tmp_path / "b", "rtx-4090")


def test_what_the_parser_refuses_is_told_with_the_node(tmp_path: Path) -> None:
    lowered = tensorrt.lower(stage_in(checkpoint_of("float16")))
    write_stage(lowered, tmp_path / "s")
    model = onnx.load(tmp_path / "s" / MODEL_FILE, load_external_data=False)
    node = next(node for node in model.graph.node if node.op_type == "Softmax")
    node.op_type = "Bernoulli"
    (tmp_path / "s" / MODEL_FILE).write_bytes(model.SerializeToString())
    work = StageWork(
        "s", tmp_path, "s", lowered.contract, platform=find_platform("rtx-4090"), options={"builder": "rtx"}
    )
    with pytest.raises(UnsupportedFormatError, match=r"TensorRT refuses model.layers.0.self_attn/Attention/Softmax"):
        BACKEND.compile(work)


def test_a_plugin_that_is_none_is_told(tmp_path: Path) -> None:
    library = tmp_path / "libnothing.so"
    library.write_bytes(b"no library")
    lowered = tensorrt.lower(stage_in(checkpoint_of("float16")))
    write_stage(lowered, tmp_path / "s")
    options = {"builder": "rtx", "plugins": str(library)}
    work = StageWork("s", tmp_path, "s", lowered.contract, platform=find_platform("rtx-4090"), options=options)
    with pytest.raises(ToolError, match=r"can't load the plug-in library libnothing\.so"):
        BACKEND.compile(work)
