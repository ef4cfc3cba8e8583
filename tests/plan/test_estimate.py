from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgewright.build.pipeline import deploy, export
from edgewright.build.sources import PolicyRequest
from edgewright.checkpoint.policy import PolicyOptions
from edgewright.errors import BundleError, ConfigError, ModelError, RecipeError, SourceNotFoundError, UsageError
from edgewright.plan import Plan, Request, make_plan, open_model
from edgewright.plan import source as plan_source
from edgewright.plan.changes import largest_context
from edgewright.plan.estimate import Estimator
from edgewright.plan.roofline import Limits, bound
from edgewright.plan.work import Work
from edgewright.runtime import session
from edgewright.runtime.llm import LLM
from edgewright.targets.platform import Platform, find_platform, shipped_platforms
from policy_goldens import OPTIONS, POLICY_GOLDENS

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "tests" / "goldens" / "text"
SMOL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
BOARD = replace(
    find_platform("jetson-orin-nx"),
    bandwidth_bytes_per_s=1e9,
    peak_ops_per_s={"float16": 4e9, "int8": 8e9},
    memory_bytes=1 << 30,
    engine=None,
)


def planned(source: Path, platform: Platform = BOARD, *, recipe: str | None = None, **request: int | float) -> Plan:
    context = request.get("context")
    model = open_model(source, platform, recipe=recipe, context=None if context is None else int(context))
    return make_plan(model, platform, Request(**request))  # type: ignore[arg-type]


def test_a_roofline_is_the_longer_of_arithmetic_and_bytes_at_every_node() -> None:
    limits = Limits(BOARD, 1e9)
    fast = Work("a", "Linear", "float", macs=2_000_000, weight_bytes=100)  # 1 ms of arithmetic
    slow = Work("b", "Linear", "int8", macs=1_000_000, weight_bytes=3_000_000)  # 0.25 ms, and 3 ms of bytes
    assert bound([fast], limits).seconds == pytest.approx(1e-3)
    assert bound([fast], limits).binding == "compute"
    assert bound([slow], limits).seconds == pytest.approx(3e-3)
    found = bound([fast, slow], limits, times=10)
    assert (found.seconds, found.binding, found.unknown) == (pytest.approx(40e-3), "bandwidth", ())
    half = bound([fast, slow], replace(limits, efficiency=0.5))
    assert half.seconds == pytest.approx(8e-3)


def test_what_is_not_known_is_said() -> None:
    work = [Work("a", "Linear", "fp8", macs=2_000_000, weight_bytes=1000), Work("b", "Linear", macs=5)]
    found = bound(work, Limits(BOARD, 1e9))
    assert found.unknown == ("fp8",)
    assert found.seconds == pytest.approx(1e-6 + 2.5e-9)
    nothing = bound(work, Limits(replace(BOARD, bandwidth_bytes_per_s=None), None))
    assert (nothing.seconds, nothing.binding) == (None, None)
    assert Limits(BOARD, 1e9).peak("mxfp8") is None
    assert Limits(find_platform("jetson-thor"), 1e9).peak("mxfp8") == 517.5e12


def test_stages_of_a_language_model() -> None:
    plan = planned(TEXT / "llama", recipe="float32", context=64, prompt=24)
    prefill, decode = plan.stages
    assert (prefill.name, prefill.tokens, decode.name, decode.tokens) == ("prefill", 24, "decode", 1)
    hidden, inner, vocab, kv = 40, 44, 97, 2 * 2 * 10
    layer = hidden * (40 + kv + 40) + 3 * hidden * inner
    # At the context's end a token sees all 64 slots, in four heads of ten, scores and values.
    assert decode.macs == 3 * (layer + 4 * 2 * 10 * 64) + hidden * vocab
    assert decode.moved("cache") == 3 * kv * (64 + 1) * 2  # float16 on this platform
    assert prefill.moved("cache") == 3 * kv * (24 + 24) * 2
    weights = 4 * (3 * layer + hidden * vocab + 7 * hidden)  # three layers, head, norms
    rows = 4 * (hidden + 2 * 5)  # a row of the table; rope rows, which all layers share
    assert decode.moved("weight") == weights + rows
    assert plan.memory.cache == 3 * kv * 64 * 2
    assert plan.memory.weights == weights + 4 * vocab * hidden + 4 * 2 * 64 * 5
    assert decode.bound.binding == "bandwidth"


def test_batch_and_long_prompts() -> None:
    one, four = (planned(TEXT / "llama", recipe="int4", context=64, prompt=24, batch=n) for n in (1, 4))
    assert four.stages[0].macs == 4 * one.stages[0].macs
    assert four.memory.cache == 4 * one.memory.cache
    assert four.memory.weights == one.memory.weights
    assert one.stages[0].moved("weight") < four.stages[0].moved("weight") < 1.5 * one.stages[0].moved("weight")


def test_prompts_are_cut_as_the_runtime_cuts_them() -> None:
    assert plan_source.PREFILL_CHUNK == session.PREFILL_CHUNK
    whole = planned(TEXT / "llama", BOARD, context=256, prompt=200)
    cut_at = replace(BOARD, engine="onnxruntime")
    model = open_model(TEXT / "llama", cut_at, context=256)
    model.cut = 64
    cut = make_plan(model, cut_at, Request(prompt=200))
    assert [call.sizes["seq"] for call in Estimator(model, cut_at, Request(prompt=200))._prefill()] == [64, 64, 64, 8]

    def moved(plan: Plan, module: str) -> int:
        return sum(work.weight_bytes for work in plan.stages[0].work if work.module == module)

    times = {"model.layers.0.mlp.up_proj": 4, "model.layers.2.self_attn.v_proj": 4, "lm_head": 1}
    times["model.layers.2.mlp.up_proj"] = 1  # the last layer goes on with the last token alone
    for module, count in times.items():
        assert moved(cut, module) == count * moved(whole, module) > 0
    assert cut.stages[0].macs == whole.stages[0].macs


@pytest.mark.parametrize("recipe", ["int4", "int8", "float32"])
def test_bytes_are_those_of_a_bundle_and_its_session(recipe: str, tmp_path: Path) -> None:
    """Weights are those of the file, the cache that of a session which is full."""
    deploy(TEXT / "qwen3", tmp_path / "b", recipe=recipe, max_context=128, verify=False)
    cpu = find_platform("cpu")
    plan = planned(TEXT / "qwen3", cpu, recipe=recipe, context=128)
    llm = LLM.load(tmp_path / "b", threads=1)
    full = llm.session()
    full.append(np.arange(120) % 50)
    assert full.capacity == 128
    assert plan.memory.cache == full.kv_bytes
    file = (tmp_path / "b" / "stages" / "llm" / "weights.bin").stat().st_size
    assert plan.memory.weights == pytest.approx(file, rel=0.15)  # tensors begin at multiples of 64 bytes there


def test_recurrent_states_are_those_of_a_session(tmp_path: Path) -> None:
    deploy(TEXT / "bamba", tmp_path / "b", recipe="int8", max_context=128, verify=False)
    plan = planned(TEXT / "bamba", find_platform("cpu"), recipe="int8", context=128)
    fresh = LLM.load(tmp_path / "b", threads=1).session()
    fresh._reserve(128)
    assert plan.memory.cache == fresh.kv_bytes


@pytest.mark.real
def test_weights_of_a_real_model_are_those_of_its_file(tmp_path: Path) -> None:
    built = export(SMOL, tmp_path / "b", recipe="int4", dialect="onnxruntime", max_context=2048)
    plan = planned(SMOL, find_platform("cpu"), recipe="int4", context=2048)
    file = built.manifest.files["stages/llm/weights.bin"]["bytes"]
    assert plan.memory.weights == pytest.approx(file, rel=0.02)
    # Measured on two cores with one thread: 323 MB above an empty process, with a full cache of 2,048 tokens.
    assert plan.memory.total == pytest.approx(323e6, rel=0.15)


def test_calibrating_recipes_are_planned_without_calibration() -> None:
    for recipe in ("fp8", "int4-awq", "nvfp4+fp8-kv", "w8a8", "w4a8"):
        plan = planned(TEXT / "llama", find_platform("jetson-thor"), recipe=recipe, context=64)
        plain = planned(TEXT / "llama", find_platform("jetson-thor"), recipe="float16", context=64)
        assert plan.memory.weights < plain.memory.weights
        assert (plan.memory.cache < plain.memory.cache) == ("kv" in recipe)
        kinds = {work.multiplies for work in plan.stages[1].work if work.op == "Linear"}
        wanted = {"fp8": "fp8", "int4-awq": "float", "nvfp4+fp8-kv": "nvfp4", "w8a8": "int8", "w4a8": "int8"}
        assert wanted[recipe] in kinds


def test_what_the_engine_here_widens_is_counted_as_floats() -> None:
    cpu, llama = find_platform("cpu"), TEXT / "llama"
    plain = planned(llama, cpu, recipe="float32", context=64)
    for recipe in ("float16", "mxfp8"):
        wide = planned(llama, cpu, recipe=recipe, context=64)
        narrow = planned(
            llama, BOARD if recipe == "float16" else find_platform("jetson-thor"), recipe=recipe, context=64
        )
        # The table alone stays as it is stored.
        table = 97 * 40 * 2
        assert plain.memory.weights - wide.memory.weights == table
        assert narrow.memory.weights < 0.6 * wide.memory.weights
        assert any("become float32" in note for note in wide.notes) == (recipe == "mxfp8")
        assert not any("become float32" in note for note in narrow.notes)


def test_stages_of_a_policy() -> None:
    platform = find_platform("jetson-orin")
    model = open_model(POLICY_GOLDENS / "pi05" / "checkpoint", platform, options=PolicyOptions(**OPTIONS["pi05"]))
    plan = make_plan(model, platform, Request())
    assert [(stage.name, stage.times) for stage in plan.stages] == [("vision", 1), ("prefix", 1), ("denoise", 10)]
    assert plan.sizes == {"batch": 1, "prompt_tokens": 80, "cameras": 3, "horizon": 12, "steps": 10}
    denoise = plan.stages[2]
    assert denoise.macs == 10 * sum(work.macs for work in denoise.work)
    assert plan.memory.cache == 3 * 2 * (3 * 4 + 80) * 8 * 2
    short = make_plan(model, platform, Request(prompt=20))
    assert short.stages[1].macs < plan.stages[1].macs
    assert short.stages[0].macs == plan.stages[0].macs
    with pytest.raises(UsageError, match="81 tokens is longer than the 80 that the policy takes"):
        make_plan(model, platform, Request(prompt=81))


@pytest.mark.parametrize("case", ["pi05", "smolvla"])
@pytest.mark.parametrize("loop", ["step", "graph"])
def test_bundles_of_policies_do_what_their_checkpoints_do(case: str, loop: str, tmp_path: Path) -> None:
    source, options = POLICY_GOLDENS / case / "checkpoint", PolicyOptions(**OPTIONS[case])
    export(
        source,
        tmp_path / "b",
        recipe="policy-int8",
        dialect="onnxruntime",
        policy=PolicyRequest(options, {"loop": loop}),
    )
    cpu = find_platform("cpu")
    plan = make_plan(open_model(source, cpu, options=options), cpu, Request())
    shipped = make_plan(open_model(tmp_path / "b", cpu), cpu, Request())
    assert [stage.macs for stage in shipped.stages] == [stage.macs for stage in plan.stages]
    assert shipped.memory.cache == plan.memory.cache
    assert shipped.memory.weights == pytest.approx(plan.memory.weights, rel=0.1)
    if loop == "step":  # a loop makes floats of some weights once, before it begins
        for one, other in zip(shipped.stages, plan.stages, strict=True):
            assert one.moved("weight") == pytest.approx(other.moved("weight"), rel=0.15)


@pytest.mark.parametrize("name", ["llama", "qwen3_5_text", "gemma3_text"])
def test_bundles_do_what_their_checkpoints_do(name: str, tmp_path: Path) -> None:
    export(TEXT / name, tmp_path / "b", recipe="int4", dialect="onnxruntime", max_context=64)
    cpu = find_platform("cpu")
    plan, shipped = planned(TEXT / name, cpu, context=64), planned(tmp_path / "b", cpu)
    assert shipped.sizes == plan.sizes
    assert shipped.memory.cache == plan.memory.cache
    for one, other in zip(shipped.stages, plan.stages, strict=True):
        # Bodies without kernels run hidden slots as well, kernels the same products.
        dense = sum(work.macs for work in one.work if work.op == "MatMul" and work.module.endswith("attn"))
        hidden = sum(work.macs for work in other.work if work.op == "Attention")
        assert dense == 0 or dense >= hidden
        assert one.macs - dense == pytest.approx(other.macs - (hidden if dense else 0), rel=0.05)
        assert one.moved("weight") == pytest.approx(other.moved("weight"), rel=0.3)
    assert planned(tmp_path / "b", cpu, context=32).memory.cache < shipped.memory.cache
    with pytest.raises(UsageError, match="was built for 64 tokens, not 65"):
        planned(tmp_path / "b", cpu, context=65)


def test_bundles_that_cannot_be_followed(tmp_path: Path) -> None:
    cpu = find_platform("cpu")
    export(TEXT / "mixtral", tmp_path / "b", recipe="int4", dialect="onnxruntime", max_context=64)
    with pytest.raises(ModelError, match=r"work depends on data.*plan the checkpoint"):
        planned(tmp_path / "b", cpu)
    with pytest.raises(UsageError, match="is a bundle, whose weights are what they are"):
        planned(tmp_path / "b", cpu, recipe="int8")
    with pytest.raises(
        RecipeError, match=r"has int4 weights as it is stored, and Horizon Journey 5 has none; it has int8 and"
    ):
        planned(tmp_path / "b", find_platform("horizon-j5"))
    graph = tmp_path / "b" / "stages" / "llm" / "model.onnx"
    model = ir.load(graph)
    ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    ids.shape = ir.Shape(("batch", "tokens"))
    ir.save(model, graph)
    with pytest.raises(ModelError, match="on tokens, which the planner doesn't know: plan the checkpoint"):
        planned(tmp_path / "b", cpu)
    graph.write_bytes(graph.read_bytes()[:100])
    with pytest.raises(BundleError, match="can't be read"):
        planned(tmp_path / "b", cpu)


def with_memory(total: int) -> Platform:
    return replace(BOARD, memory_bytes=total)


def test_what_fits_has_no_changes() -> None:
    plan = planned(TEXT / "llama", context=64)
    assert plan.fits is True
    assert plan.changes == ()
    exact = planned(TEXT / "llama", with_memory(plan.memory.total), context=64)
    assert exact.fits is True
    assert planned(TEXT / "llama", with_memory(plan.memory.total - 1), context=64).fits is False


def test_the_cheapest_change_comes_first_and_is_computed() -> None:
    """A table outside costs no quality, an int8 cache little, fewer bits more, a shorter context is the last."""
    wide = planned(TEXT / "llama", recipe="float32", context=256)
    table = 4 * 97 * 40
    outside = wide.memory.total - table
    plan = planned(TEXT / "llama", with_memory(outside), recipe="float32", context=256)
    assert [change.words.split(" ")[0] for change in plan.changes] == [
        "--embeddings",
        "an",
        "--recipe",
        "--recipe",
        "--context",
    ]
    assert plan.cheapest is not None
    assert (plan.cheapest.words, plan.cheapest.total_bytes) == ("--embeddings outside", outside)
    halved = planned(TEXT / "llama", with_memory(outside - 1), recipe="float32", context=256)
    assert halved.cheapest is not None
    assert halved.cheapest.words.startswith("an int8 key/value cache")
    assert halved.cheapest.total_bytes == wide.memory.total - wide.memory.cache // 2
    narrow = planned(TEXT / "llama", with_memory(halved.cheapest.total_bytes - 1), recipe="float32", context=256)
    assert narrow.cheapest is not None
    assert narrow.cheapest.words == "--recipe int8"
    as_asked = planned(TEXT / "llama", recipe="int8", context=256)
    assert narrow.cheapest.total_bytes == as_asked.memory.total
    for change in plan.changes:
        assert change.fits == (change.total_bytes <= outside)


def test_changes_that_a_platform_lacks_are_not_offered() -> None:
    bare = replace(BOARD, memory_bytes=1000, weights=frozenset({"int8"}), caches=frozenset())
    plan = planned(TEXT / "llama", bare, recipe="float32", context=256)
    words = " ".join(change.words for change in plan.changes)
    assert "int8 key/value" not in words
    assert "--recipe int4" not in words
    assert "--recipe int8" in words


def test_all_changes_together_are_the_last_resort() -> None:
    every = planned(TEXT / "llama", with_memory(1), recipe="float32", context=256)
    assert every.cheapest is None
    assert "--embeddings outside, an int8" in every.changes[-1].words
    assert "--recipe int4" in every.changes[-1].words
    assert every.changes[-1].words.count("--recipe") == 1
    total = every.changes[-1].total_bytes
    plan = planned(TEXT / "llama", with_memory(total), recipe="float32", context=256)
    assert plan.cheapest is not None
    singles = [
        change for change in plan.changes if "," not in change.words and not change.words.startswith("--context")
    ]
    assert plan.changes[-1].total_bytes <= total
    assert not any(change.fits for change in singles)


def test_the_largest_context_is_the_largest() -> None:
    for name in ("llama", "gemma3_text", "bamba"):
        model = open_model(TEXT / name, BOARD, context=256)
        estimator = Estimator(model, BOARD, Request())
        for length in (1, 17, 100, 255, 256):
            total = estimator.memory(context=length).total
            assert largest_context(estimator, total) == length
            assert (largest_context(estimator, total - 1) or 0) < length


def test_memory_is_what_the_user_says_or_this_machine() -> None:
    phone = find_platform("snapdragon-8-gen-3")
    unknown = planned(TEXT / "llama", phone, context=64)
    assert (unknown.capacity, unknown.fits) == (None, None)
    assert planned(TEXT / "llama", phone, context=64, memory_bytes=8_000_000_000).fits is True
    assert planned(TEXT / "llama", phone, context=64, memory_bytes=1000).fits is False
    here = planned(TEXT / "llama", find_platform("cpu"), context=64)
    assert here.capacity is not None
    assert here.capacity > 1 << 28


def test_notes_say_what_is_not_known() -> None:
    plan = planned(TEXT / "llama", find_platform("snapdragon-8-gen-3"), context=64)
    assert any("no public peak of float16 on Snapdragon 8 Gen 3" in note for note in plan.notes)
    assert plan.stages[1].bound.seconds is not None  # the bandwidth is known
    plan = planned(TEXT / "llama", find_platform("sa8775p"), context=64)
    assert any("no public bandwidth" in note for note in plan.notes)
    assert plan.stages[1].bound.seconds is None
    faster = planned(TEXT / "llama", find_platform("sa8775p"), context=64, bandwidth=1e9)
    assert faster.stages[1].bound.seconds is not None


@pytest.mark.parametrize("name", shipped_platforms())
def test_every_platform_can_be_planned_for(name: str) -> None:
    recipe = "int8" if name.startswith("horizon") else "int4"
    data = planned(TEXT / "llama", find_platform(name), recipe=recipe, context=64, memory_bytes=1 << 30).to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["platform"] == name
    assert data["fits"] is True


def test_refusals_come_before_work() -> None:
    orin = find_platform("jetson-orin")
    with pytest.raises(RecipeError, match=r"fp8\.yaml:3: Jetson AGX Orin 64 GB has no fp8 weights"):
        planned(TEXT / "llama", orin, recipe="fp8")
    with pytest.raises(RecipeError, match="There is no recipe 'int5'"):
        planned(TEXT / "llama", orin, recipe="int5")
    with pytest.raises(SourceNotFoundError):
        planned(TEXT / "nowhere", orin)
    with pytest.raises(ConfigError, match="context of 257 tokens is outside what the model supports"):
        planned(TEXT / "llama", orin, context=257)
    with pytest.raises(UsageError, match="prompt of 65 tokens doesn't fit into the context of 64"):
        planned(TEXT / "llama", orin, context=64, prompt=65)
    with pytest.raises(UsageError, match="is a robot policy, whose prefix"):
        planned(POLICY_GOLDENS / "pi05" / "checkpoint", orin, context=64)
    with pytest.raises(UsageError, match="is not a robot policy"):
        open_model(TEXT / "llama", orin, options=PolicyOptions(steps=3))


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (
            "ct-fp8-dynamic",
            r"model\.layers\.0\.self_attn\.q_proj has fp8 weights as it is stored, and Jetson AGX Orin 64",
        ),
        ("ct-fp8-kv", r"fp8 \w+ as it is stored, and Jetson AGX Orin 64 GB has none"),
        ("awq-g128", None),
        ("ct-w8a8-static", None),
    ],
)
def test_quantized_checkpoints_are_asked_what_they_store(checkpoint: str, message: str | None) -> None:
    source, orin = ROOT / "tests" / "goldens" / "prequantized" / checkpoint, find_platform("jetson-orin")
    if message is None:
        assert planned(source, orin, recipe="stored").fits
        return
    with pytest.raises(RecipeError, match=message):
        planned(source, orin, recipe="stored")
    assert planned(source, find_platform("jetson-thor"), recipe="stored").fits


def test_no_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgewright.graph.weights import ComputedWeight, StoredWeight

    def read(*_: object) -> np.ndarray:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(StoredWeight, "rows", read)
    monkeypatch.setattr(ComputedWeight, "rows", read)
    for name in ("llama", "mixtral", "bamba"):
        planned(TEXT / name, with_memory(1000), recipe="float32", context=64)
    orin = find_platform("jetson-orin")
    options = PolicyOptions(**OPTIONS["pi05"])
    make_plan(open_model(POLICY_GOLDENS / "pi05" / "checkpoint", orin, options=options), orin, Request())
