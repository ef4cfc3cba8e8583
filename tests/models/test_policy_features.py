"""Features of robot policies: each alone, on and off, against the plain graphs, on random policies and the goldens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from conftest import relative_error
from edgewright.errors import UsageError
from edgewright.formats import ActivationFormat, FloatFormat, Format, IntFormat, MxFormat, Nvfp4Format, ScaledFormat
from edgewright.graph import Stage
from edgewright.graph.features import FEATURES
from edgewright.graph.writer import MODEL_FILE
from edgewright.models._policy import build_policy
from edgewright.models._policy_features import apply_features, build_featured, build_options
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import Inputs, Recipe
from edgewright.targets.cpu import ENGINE_FILE, compile_stage
from policy_goldens import POLICY_CASES, frame, policy_checkpoint, stepwise
from policy_random import random_frame, random_source
from policy_stages import FeaturedPolicy, Feeds

#: Rewrites are exact: only the order and the place of roundings may change.
TOLERANCE = 1e-6
KINDS = ("pi05", "pi0", "smolvla")
DIALECTS = ("portable", "onnxruntime", "onnx-qdq")
GRAPH_FEATURES = [feature for feature in FEATURES.values() if not feature.runtime]
PLAIN: dict[str, bool | str] = {f.name: "step" if f.name == "loop" else f.name == "kv-only" for f in GRAPH_FEATURES}
#: What is tried, each against PLAIN.
TRIED: list[dict[str, bool | str]] = [
    {"time-table": True},
    {"kv-only": False},
    {"kv-transposed": True},
    {"cross-once": True},
    {"fused-projections": True},
    {"norm-folding": True},
    {"loop": "graph", "time-table": True},
    {"loop": "unrolled", "time-table": True},
    {**dict.fromkeys(PLAIN, True), "loop": "graph"},
]


def named(features: Mapping[str, bool | str]) -> str:
    return "everything" if len(features) > 2 else next(f"{name}={value}" for name, value in features.items())


each_kind = pytest.mark.parametrize("kind", KINDS)
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)

Make = Callable[..., FeaturedPolicy]


def for_kind(kind: str, features: Mapping[str, bool | str]) -> dict[str, bool | str]:
    """Return all features, those that a kind can't have off."""
    asked = {**PLAIN, **features}
    return {n: value if not FEATURES[n].kinds or kind in FEATURES[n].kinds else False for n, value in asked.items()}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A function (kind, dialect, seed, *features) -> a random policy, made once."""

    @functools.cache
    def made(kind: str, dialect: str, seed: int, *features: tuple[str, bool | str]) -> FeaturedPolicy:
        source = random_source(kind, seed, schedule="float64-linear" if seed % 2 else "float32-sum", steps=4 + seed)
        folder = tmp_path_factory.mktemp(kind)
        return FeaturedPolicy(source, source.spec, for_kind(kind, dict(features)), folder, dialect)

    return made


def a_frame(kind: str, seed: int, batch: int = 2) -> Feeds:
    return random_frame(random_source(kind, seed), np.random.default_rng(seed + 50), batch, 3 + seed, 5)


#: Standard ops alone are bodies of the portable dialect put in place: only what concerns that is tried.
EACH = [(d, f) for d in DIALECTS for f in TRIED if d != "onnx-qdq" or "time-table" in f]


@pytest.mark.parametrize(("dialect", "features"), EACH, ids=lambda v: v if isinstance(v, str) else named(v))
@each_kind
def test_random_policies(kind: str, dialect: str, features: Any, make: Make) -> None:
    for seed in (0, 1):
        plain, changed = make(kind, dialect, seed), make(kind, dialect, seed, *features.items())
        for batch in (1, 2):
            given = a_frame(kind, seed, batch)
            wanted, got = plain.prefix(given), changed.prefix(given)
            assert relative_error(changed.actions(got), plain.actions(wanted)) < TOLERANCE
            swapped = changed.applied.features["kv-transposed"]
            if not changed.applied.features["cross-once"]:
                for name in wanted.keys() - given.keys():
                    rows = got[name].swapaxes(2, 3) if swapped and "key" in name else got[name]
                    assert relative_error(rows, wanted[name]) < TOLERANCE
            assert ("prefix_hidden" in got) == (not changed.applied.features["kv-only"])


@functools.cache
def golden_frames(case: str) -> list[Feeds]:
    """Return what the first scenarios of a golden feed: several cameras, a missing one, a batch."""
    frames = []
    for scenario in stepwise(case)[:3]:
        f = frame(case, scenario)
        given: Feeds = {"token_ids": f.ids, "prefix_mask": f.mask, "noise": f.x_t[0]}
        given |= {} if f.state is None else {"state": f.state}
        if f.features is not None:
            given["image_features"] = f.features
        if f.pixels is not None:
            given["images"] = f.pixels.reshape(-1, *f.pixels.shape[2:])
        frames.append(given)
    return frames


@pytest.mark.parametrize("dialect", DIALECTS[:2])
@pytest.mark.parametrize("case", POLICY_CASES)
def test_goldens(case: str, dialect: str, tmp_path: Path) -> None:
    """Single steps and whole flows; SmolVLA's velocity is a few times as far off as what it is made of."""
    checkpoint = policy_checkpoint(case)

    def made(features: Mapping[str, bool | str]) -> FeaturedPolicy:
        asked = for_kind(checkpoint.kind, features)
        return FeaturedPolicy(checkpoint, checkpoint.spec, asked, tmp_path / named(features or asked), dialect)

    plain = made({})
    wanted = [(read, plain.actions(read)) for read in map(plain.prefix, golden_frames(case))]
    for features in TRIED:
        changed = made(features)
        for given, (plain_read, actions) in zip(golden_frames(case), wanted, strict=True):
            read = changed.prefix(given)
            assert relative_error(changed.actions(read), actions) < 5 * TOLERANCE, features
            if changed.applied.features["loop"] == "step":
                for step in (0, checkpoint.spec.steps - 1):
                    one = plain.velocity(plain_read, given["noise"], step)
                    got = changed.velocity(read, given["noise"], step)
                    assert relative_error(got, one) < 3 * TOLERANCE, features


@each_dialect
@each_kind
@pytest.mark.parametrize("kept", [1, 3])
def test_committed_actions_take_the_row_of_time_zero(kind: str, dialect: str, kept: int, make: Make) -> None:
    plain, tabled = make(kind, dialect, 0), make(kind, dialect, 0, ("time-table", True))
    given = a_frame(kind, 0)
    read = plain.prefix(given)
    wanted = plain.velocity(read, given["noise"], 2, kept)
    assert relative_error(tabled.velocity(read, given["noise"], 2, kept), wanted) < TOLERANCE
    assert relative_error(plain.velocity(read, given["noise"], 2), wanted) > 1e-4  # kept ones matter


@each_kind
def test_the_loop_counts_and_sums_as_the_runtime_does(kind: str, make: Make) -> None:
    """In the portable dialect the same nodes run in the same order: the actions are the same bits."""
    given = a_frame(kind, 1, 1)
    stepwise = make(kind, "portable", 1, ("time-table", True))
    wanted = stepwise.actions(stepwise.prefix(given))
    for loop in ("graph", "unrolled"):
        whole = make(kind, "portable", 1, ("loop", loop), ("time-table", True))
        read = whole.prefix(given)
        np.testing.assert_array_equal(whole.actions(read), wanted)
        noise = read["noise"].copy()
        np.testing.assert_array_equal(whole.actions(read), whole.actions(read))
        np.testing.assert_array_equal(read["noise"], noise)


@each_kind
@pytest.mark.parametrize("loop", ["graph", "unrolled"])
def test_the_loop_has_every_weight_once(kind: str, loop: str, make: Make) -> None:
    stepwise = make(kind, "onnxruntime", 0, ("time-table", True))
    whole = make(kind, "onnxruntime", 0, ("loop", loop), ("time-table", True))
    big = [{n for n, w in p.stages["denoise"].weights.items() if n != "time_table"} for p in (stepwise, whole)]
    assert big[0] == big[1]
    assert whole.stages["denoise"].producers.keys() == stepwise.stages["denoise"].producers.keys()
    contract = whole.stages["denoise"].contract
    assert [t.name for t in contract.outputs] == ["actions"]
    assert {"noise", "prefix_mask", "prefix_key.0"} <= {t.name for t in contract.inputs}
    assert not {"x_t", "time_index"} & {t.name for t in contract.inputs}
    assert "times" not in contract.bounds


@each_kind
def test_the_schedule(kind: str) -> None:
    source = random_source(kind, 2, schedule="float64-linear", steps=3)
    _, applied = build_featured(source, source.spec, {})
    wanted = [1.0, float(np.float32(1 - 1 / 3)), float(np.float32(1 - 2 / 3))]
    assert applied.schedule is not None
    assert applied.schedule == {"steps": 3, "convention": "float64-linear", "times": wanted, "zero_row": 3}
    assert build_featured(source, source.spec, {"loop": "graph"})[1].schedule["zero_row"] is None  # type: ignore[index]
    assert build_featured(source, source.spec, {"time-table": False})[1].schedule is None


def test_the_table_of_another_schedule_is_another_policy(make: Make, tmp_path: Path) -> None:
    """What would go wrong with a stale table is visible."""
    given = a_frame("pi05", 0)
    source = random_source("pi05", 0, schedule="float64-linear", steps=5)
    right = make("pi05", "portable", 0)
    stale = FeaturedPolicy(source, source.spec, for_kind("pi05", {"loop": "graph", "time-table": True}), tmp_path)
    assert relative_error(stale.actions(stale.prefix(given)), right.actions(right.prefix(given))) > 1e-4


def test_weights_that_only_fed_the_table_leave() -> None:
    source = random_source("pi05", 0)
    plain, stages = build_policy(source)["denoise"], build_featured(source, source.spec, {})[0]
    gone = plain.weights.keys() - stages["denoise"].weights.keys()
    norms = [f"layers.{i}.{name}_layernorm" for i in range(3) for name in ("input", "post_attention")]
    modules = [f"paligemma_with_expert.gemma_expert.model.{name}.dense" for name in (*norms, "norm")]
    modules += ["time_mlp_in", "time_mlp_out"]
    assert gone == {f"{module}.{part}" for module in modules for part in ("weight", "bias")}
    applied = build_featured(source, source.spec, {})[1]
    assert set(applied.tabled) == set(modules)
    count = sum(np.prod(plain.weights[name].shape) for name in gone)
    assert f"{len(modules)} linears" in applied.notes[0]
    assert f"{4 * count:,} bytes of weights" in applied.notes[0]
    for kind in ("pi0", "smolvla"):
        other = random_source(kind, 0)
        assert build_featured(other, other.spec, {})[1].tabled == ("action_time_mlp_in.time",)


QUANTIZED: dict[str, Format] = {
    "int8": IntFormat(8, 16, zero_point=False),
    "int4": IntFormat(4, 16, zero_point=True),
    "float16": FloatFormat("float16"),
    "fp8": ScaledFormat("e4m3", "channel"),
    "fp8-tensor": ScaledFormat("e4m3", "tensor"),
    "fp8-rows": ScaledFormat("e4m3", "row-block"),
    "mxfp4": MxFormat("e2m1"),
    "nvfp4": Nvfp4Format(),
    "w8a8": ScaledFormat("int8", "channel"),
}
#: Those that have scales of their own for every row.
JOINED = ("int8", "int4", "fp8", "fp8-rows", "mxfp4", "w8a8")


@pytest.mark.parametrize("name", QUANTIZED)
@each_kind
def test_the_loop_and_fusing_with_quantized_weights(kind: str, name: str, tmp_path: Path) -> None:
    """Stacked rows and the loop change no code, so the results stay."""
    inputs = Inputs(ActivationFormat("int8", static=False) if name == "w8a8" else None)
    recipe = Recipe("test", QUANTIZED[name], FloatFormat("float32"), FloatFormat("float32"), inputs=inputs)

    def quantize(stages: dict[str, Stage]) -> None:
        for stage in stages.values():
            quantize_stage(stage, recipe)

    source, given = random_source(kind, 0, steps=3), a_frame(kind, 0)
    made: dict[str, FeaturedPolicy] = {}
    for label, features in {
        "plain": {"time-table": True},
        "fused": {"time-table": True, "fused-projections": True},
        "looped": {"time-table": True, "fused-projections": True, "loop": "graph"},
        "unrolled": {"time-table": True, "loop": "unrolled"},
    }.items():
        asked = for_kind(kind, features)
        made[label] = FeaturedPolicy(source, source.spec, asked, tmp_path / label, change=quantize)
    wanted = made["plain"].actions(made["plain"].prefix(given))
    for policy in made.values():
        assert relative_error(policy.actions(policy.prefix(given)), wanted) < 2 * TOLERANCE
    float_policy = FeaturedPolicy(source, source.spec, for_kind(kind, {"time-table": True}), tmp_path / "float")
    assert relative_error(float_policy.actions(float_policy.prefix(given)), wanted) > 1e-5
    denoise = made["fused"].stages["denoise"]
    joined = any("gate_proj+up_proj" in producer for producer in denoise.producers)
    noted = any("stay apart" in note for note in denoise.notes)
    assert (joined, noted) == ((True, False) if name in JOINED else (False, True))
    assert not any("+" in producer for producer in made["plain"].stages["denoise"].producers)


@each_kind
@pytest.mark.parametrize("loop", ["graph", "unrolled"])
def test_the_loop_compiles_ahead_of_time(kind: str, loop: str, make: Make) -> None:
    """The engine reads the weights that were written, and gives what the graph gives."""
    policy = make(kind, "onnxruntime", 1, ("loop", loop), ("time-table", True))
    given = a_frame(kind, 1)
    read = policy.prefix(given)
    wanted = policy.actions(read)
    folder = Path(policy.folder) / "denoise"
    compile_stage(folder, "stages/denoise", policy.stages["denoise"].contract, half_weights=False)
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    engine = ort.InferenceSession(str(folder / ENGINE_FILE), settings, providers=["CPUExecutionProvider"])
    names = {tensor.name for tensor in policy.stages["denoise"].contract.inputs}
    got = engine.run(["actions"], {name: read[name] for name in names})[0]
    assert relative_error(got, wanted) < TOLERANCE
    assert (folder / MODEL_FILE).is_file()


def test_stages_built_without_a_feature_cant_have_it() -> None:
    source = random_source("smolvla", 0)
    cases: list[tuple[dict[str, bool | str], str]] = [
        ({"kv-only": False}, "built with kv-only=on and can't be given kv-only=off"),
        ({"kv-transposed": True}, "built with kv-transposed=off"),
        ({"cross-once": False}, "built with cross-once=on"),
    ]
    for features, message in cases:
        stages = build_policy(source, **build_options({}, "smolvla"))
        with pytest.raises(UsageError, match=message):
            apply_features(stages, source.spec, features)
        right = build_policy(source, **build_options(features, "smolvla"))
        assert apply_features(right, source.spec, features).features == {**apply_all(source), **features}
    with pytest.raises(UsageError, match="built with cross-once=off"):
        apply_features(build_policy(source), source.spec, {})


def apply_all(source: Any) -> dict[str, bool | str]:
    return build_featured(source, source.spec, {})[1].features


def test_a_long_loop_is_not_written_out() -> None:
    source = random_source("pi05", 0, steps=51)
    with pytest.raises(UsageError, match="would write 51 steps into the graph, more than 50: use loop=graph"):
        build_featured(source, source.spec, {"loop": "unrolled"})
