"""The builder's folder, what checks it, and what stands in for the engine on the CPU."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from conftest import golden, relative_error
from edgellm_cases import CASES, EDGELLM, TOKENIZER, Case, checkpoint_of, read_golden
from edgewright.build.pipeline import Built, compile_bundle, deploy, export
from edgewright.bundle import read_manifest
from edgewright.cli._main import main
from edgewright.errors import BundleError, TargetMismatchError, UnsupportedFormatError, UsageError
from edgewright.runtime.embedding import embedding_of
from edgewright.runtime.engine import open_engine
from edgewright.runtime.llm import LLM
from edgewright.targets import find_target
from edgewright.targets.edgellm.checking import check_nodes
from edgewright.targets.edgellm.schema import FORMS
from edgewright.targets.platform import find_platform

NAME = "tensorrt-edge-llm"
ENGINE = Path("stages/llm/engine")


def case_of(name: str) -> Case:
    return next((case for case in CASES if case.name == name), Case(name, f"text/{name}", "float16"))


def built(case: Case, folder: Path, **options: Any) -> Built:
    """Deploy a golden checkpoint, with a tokenizer, for the target."""
    checkpoint = folder / "checkpoint"
    shutil.copytree(case.path, checkpoint)
    for file in TOKENIZER.glob("tokenizer*.json"):
        shutil.copy(file, checkpoint)
    return deploy(checkpoint, folder / "bundle", recipe=case.recipe, target=NAME, **{"verify": False, **options})


def logits(bundle: Path, ids: np.ndarray, calls: tuple[int, ...]) -> np.ndarray:
    """Return the stand-in's logits of all tokens `[batch, n, vocab]`, fed in calls of so many tokens."""
    manifest = read_manifest(bundle)
    entry = manifest.stages["llm"]
    engine, _ = find_target(NAME).stand_in(bundle, entry, 1) or (None, None)
    table = embedding_of(bundle, manifest)
    assert engine is not None
    assert table is not None
    contract, batch = engine.contract, len(ids)
    dtype = np.float32 if contract.kv_dtype == "float32" else np.uint8
    caches: dict[str, np.ndarray] = {}
    for layer in contract.kv:
        for names in ((layer.past_key, layer.present_key), (layer.past_value, layer.present_value)):
            caches |= dict.fromkeys(names, np.zeros((batch, layer.kv_heads, ids.shape[1], layer.head_dim), dtype))
    result, past = [], 0
    for count in calls:
        inputs = caches | {
            "inputs_embeds": table.rows(ids[:, past : past + count]),
            "past_lengths": np.full(batch, past),
            "logit_positions": np.arange(count),
        }
        outputs = caches | {"logits": np.zeros((batch, count, int(contract.outputs[0].shape[-1])), np.float32)}
        engine.bind(inputs, outputs)()
        result.append(outputs["logits"])
        past += count
    return np.concatenate(result, axis=1)


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def test_the_folder_is_the_exporters(tmp_path: Path) -> None:
    theirs = read_golden("qwen2")
    root = built(case_of("qwen2"), tmp_path).path
    folder = root / ENGINE
    renamed = {"weights.bin": "model.onnx.data"}
    ours = {renamed.get(path.name, path.name) for path in folder.iterdir()} - {"generation_config.json"}
    assert ours == set(theirs["files"])
    assert json.loads((folder / "config.json").read_text()) == theirs["config"]
    assert json.loads((folder / "tokenizer_config.json").read_text()) == theirs["tokenizer_config"]
    table = load_file(folder / "embedding.safetensors")
    assert {n: [str(t.dtype), list(t.shape), digest(t)] for n, t in table.items()} == theirs["embedding"]
    assert (folder / "weights.bin").samefile(root / "stages/llm/weights.bin") or (
        folder / "weights.bin"
    ).read_bytes() == (root / "stages/llm/weights.bin").read_bytes()
    manifest = read_manifest(root)
    assert manifest.stages["llm"].engine == str(ENGINE / "model.onnx")
    assert {str(ENGINE / path.name) for path in folder.iterdir()} <= manifest.files.keys()


@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "hunyuan_v1_dense", "mistral_window", "llama_rope_llama3", "llama_rope_yarn"]
)
def test_floats_are_the_models_own(name: str, tmp_path: Path) -> None:
    """Rope, per-head norms, windows, scaled frequencies; prefill in two calls and tokens one by one."""
    root = built(case_of(name), tmp_path).path
    model = golden(name)
    got = logits(root, model.ids[None, :40], (17, 20, 1, 1, 1))
    assert relative_error(got[0], model.logits[:40]) < 8e-3
    batch = model.expected["ids_b"]
    assert relative_error(logits(root, batch, (12, 8)), model.expected["logits_b"]) < 8e-3


#: Largest relative RMS error: int4 codes are the reference's own; rounded inputs sometimes fall on the other side.
LIMITS = {
    "mo-int4-awq-mha": 5e-3,
    "mo-int4-awq": 5e-3,
    "gptq-v1-g128": 5e-3,
    "awq-g128": 5e-3,
    "ct-int4-g128-gptq": 5e-3,
    "mo-int8-sq": 0.1,
}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_packed_codes_give_the_checkpoints_logits(name: str, tmp_path: Path) -> None:
    case = Case(name, f"prequantized/{name}")
    root = built(case, tmp_path).path
    expected = load_file(case.path / "expected.safetensors")
    ids = expected["ids"].reshape(1, -1)
    got = logits(root, ids, (13, ids.shape[1] - 13))
    assert relative_error(got, expected["logits"].reshape(got.shape)) < LIMITS[name]


@pytest.mark.parametrize("name", ["mo-fp8-kv", "mo-nvfp4", "mo-nvfp4a16", "mo-mxfp8", "act-order"])
def test_other_formats_pass_verification(name: str, tmp_path: Path) -> None:
    """Weights are read back and compared with the checkpoint, logits with a reference over them."""
    case = Case(name, "" if name == "act-order" else f"prequantized/{name}")
    source = checkpoint_of(case, tmp_path / "made")
    verdict = deploy(source, tmp_path / "out", recipe=case.recipe, target=NAME).manifest.verdict
    assert verdict["status"] == "partly checked"
    assert verdict["levels"]["weights"]["status"] == "passed"
    assert verdict["levels"]["engine"]["status"] == "passed"
    assert "CUDA kernels" in verdict["levels"]["device"]["summary"]


def flipped(path: Path, place: int) -> None:
    """Change a bit of a file, in a copy of its own."""
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.unlink()
    path.write_bytes(bytes(data))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(case_of("llama"), tmp_path_factory.mktemp("edgellm")).path


@pytest.fixture
def own(bundle: Path, tmp_path: Path) -> Path:
    """A copy of a bundle, to be damaged."""
    return Path(shutil.copytree(bundle, tmp_path / "own"))


def opened(root: Path) -> Any:
    return find_target(NAME).stand_in(root, read_manifest(root).stages["llm"], 1)


def test_the_bytes_that_are_shipped_are_those_that_run(bundle: Path, own: Path) -> None:
    ids = golden("llama").ids[None, :8]
    before = logits(bundle, ids, (8,))
    flipped(own / ENGINE / "weights.bin", 0)
    assert not np.array_equal(before, logits(own, ids, (8,)))


def test_a_damaged_folder_is_refused(own: Path) -> None:
    folder = own / ENGINE
    good = (folder / "config.json").read_text()
    for text, words in (
        ("[]", "missing or damaged"),
        (good.replace('"default"', '"yarn"'), "describes no rope"),
        (good.replace('"default"', '"su"'), "describes no rope"),
        (good.replace('"head_dim": 10', '"head_dim": "x"'), "describes no rope"),
    ):
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(text)
        with pytest.raises(BundleError, match=words):
            opened(own)
    (folder / "config.json").write_text(good)
    flipped(folder / "embedding.safetensors", 200)
    with pytest.raises(BundleError, match="embedding table is not the bundle's own"):
        opened(own)


def changed_graph(root: Path, change: Any) -> None:
    path = root / ENGINE / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.unlink()
    path.write_bytes(model.SerializeToString())


def test_another_graph_is_refused(bundle: Path, tmp_path: Path) -> None:
    def without_metadata(model: onnx.ModelProto) -> None:
        del model.graph.metadata_props[:]

    def with_an_op(model: onnx.ModelProto) -> None:
        model.graph.node[3].domain = "trt_edgellm"

    def without_a_cache(model: onnx.ModelProto) -> None:
        del model.graph.output[-1]

    def without_a_weight(model: onnx.ModelProto) -> None:
        del model.graph.initializer[0]

    def with_another_file(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = "../../../manifest.json"

    for number, (change, error, words) in enumerate(
        (
            (without_metadata, BundleError, "no config for TensorRT Edge-LLM"),
            (with_an_op, UnsupportedFormatError, "can't be run here"),
            (without_a_cache, BundleError, "outputs are not those"),
            (without_a_weight, BundleError, "can be run here|no graph of"),
            (with_another_file, BundleError, "no graph of"),
        )
    ):
        root = Path(shutil.copytree(bundle, tmp_path / str(number)))
        changed_graph(root, change)
        with pytest.raises(error, match=words):
            opened(root)


def plugin_of(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == "AttentionPlugin")


def spoil_attribute(model: onnx.ModelProto) -> None:
    plugin_of(model).attribute.append(onnx.helper.make_attribute("colour", 1))


def spoil_type(model: onnx.ModelProto) -> None:
    next(a for a in plugin_of(model).attribute if a.name == "num_q_heads").CopyFrom(
        onnx.helper.make_attribute("num_q_heads", 1.0)
    )


def spoil_given(model: onnx.ModelProto) -> None:
    node = plugin_of(model)
    del node.attribute[next(n for n, a in enumerate(node.attribute) if a.name == "head_size")]


def spoil_inputs(model: onnx.ModelProto) -> None:
    del plugin_of(model).input[5:]


def spoil_outputs(model: onnx.ModelProto) -> None:
    plugin_of(model).output.append("more")


def spoil_dtype(model: onnx.ModelProto) -> None:
    plugin_of(model).input[3] = "inputs_embeds"


def spoil_op(model: onnx.ModelProto) -> None:
    plugin_of(model).op_type = "AttentionPlugin7"


def spoil_standard(model: onnx.ModelProto) -> None:
    next(node for node in model.graph.node if node.op_type == "Cast").attribute[0].name = "too"


def spoil_mixture(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "MatMul")
    node.input[0] = "rope_rotary_cos_sin"


def spoil_order(model: onnx.ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "MatMul")
    node.input[0] = "nowhere"


def spoil_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_attribute, "can't have the attribute colour"),
        (spoil_type, "an attribute of another type"),
        (spoil_given, "no attribute head_size"),
        (spoil_inputs, "5 inputs"),
        (spoil_outputs, "3 outputs"),
        (spoil_dtype, "can't read inputs_embeds, which is FLOAT16"),
        (spoil_op, "has no op trt_edgellm::AttentionPlugin7"),
        (spoil_standard, "no valid Cast"),
        (spoil_mixture, "MatMul of two types"),
        (spoil_order, "nowhere is made nowhere before it"),
        (spoil_output, "output logits is of another type"),
    ],
)
def test_every_node_is_checked(bundle: Path, spoil: Any, words: str) -> None:
    model = onnx.load(bundle / ENGINE / "model.onnx", load_external_data=False)
    check_nodes(model)
    spoil(model)
    with pytest.raises(UnsupportedFormatError, match=words):
        check_nodes(model)


def test_the_forms_are_the_exporters() -> None:
    """What the table says of an op is what its exporter registers; but for a scale that it writes in another type."""
    kept = read_golden("schemas")
    names = {"FLOAT16": "float16", "FLOAT": "float", "FLOAT8E4M3FN": "float8e4m3fn", "INT8": "int8", "INT32": "int32"}
    for (domain, op), form in FORMS.items():
        told = kept[f"{domain}::{op}"]
        assert list(form.inputs) == [name for name, _, _ in told["inputs"]], op
        assert form.needed == sum(not optional for _, optional, _ in told["inputs"]), op
        assert len(form.outputs) == len(told["outputs"]), op
        kinds = {name: onnx.AttributeProto.AttributeType.Name(kind) for name, kind in form.attributes.items()}
        assert kinds == {name: kind for name, (kind, _) in told["attributes"].items()}, op
        assert set(form.given) == {name for name, (_, required) in told["attributes"].items() if required}, op
        if domain == "trt_edgellm":
            for name, _, kind in told["inputs"]:
                allowed = told["types"].get(kind, [kind])
                ours = {f"tensor({names[onnx.TensorProto.DataType.Name(n)]})" for n in form.inputs[name]}
                assert ours <= set(allowed), (op, name)


def test_what_no_engine_is_here_for_is_said(bundle: Path) -> None:
    with pytest.raises(TargetMismatchError, match="runs on tensorrt-edge-llm, for which nothing is installed"):
        open_engine(bundle, read_manifest(bundle).stages["llm"])
    with pytest.raises(TargetMismatchError):
        LLM.load(bundle)


def test_platforms_of_others_are_refused() -> None:
    backend = find_target(NAME)
    backend.require(None, {})
    backend.require(find_platform("jetson-thor"), {})
    with pytest.raises(UsageError, match="its compiler is"):
        backend.require(find_platform("raspberry-pi-5"), {})


def test_a_policy_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = EDGELLM.parent / "policies" / "pi05" / "checkpoint"
    assert main(["deploy", str(source), "-o", str(tmp_path / "out"), "--target", NAME]) != 0
    assert "no language model with a key/value cache" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_exported_folder_is_compiled_to_the_same_bytes(tmp_path: Path) -> None:
    case = case_of("qwen3")
    whole = built(case, tmp_path / "a").path
    source = tmp_path / "a" / "checkpoint"
    parts = export(source, tmp_path / "parts", recipe="float16", dialect=NAME).path
    again = compile_bundle(parts, tmp_path / "again", target=NAME).path
    for name in ("model.onnx", "weights.bin", "config.json", "embedding.safetensors", "tokenizer_config.json"):
        assert (whole / ENGINE / name).read_bytes() == (again / ENGINE / name).read_bytes(), name


def test_text_is_written_by_the_stand_in(source: Path, tmp_path: Path) -> None:
    """The whole runtime works over it: prompts, caches that grow, greedy tokens."""
    bundle = deploy(source, tmp_path / "out", recipe="float16", target=NAME, verify=False).path
    prompt = "the whole runtime"
    plain = LLM.load(deploy(source, tmp_path / "cpu", recipe="float32", verify=False).path)
    both = (plain, LLM(bundle, read_manifest(bundle), opened(bundle)[0]))
    texts = ["".join(llm.generate(prompt, max_tokens=12, ignore_eos=True)) for llm in both]
    assert texts[0] == texts[1]
    assert texts[0]
