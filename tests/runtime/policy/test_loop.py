"""The loop over stages that are a few lines of NumPy, so that what it must do can be written out beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from policy_inputs import spec_of

from edgewright.contract import Dim, StageContract, TensorContract
from edgewright.errors import BundleError, GenerationError
from edgewright.runtime.policy.loop import Features, Loop
from edgewright.runtime.policy.observation import Prepared
from edgewright.runtime.policy.schedule import FixedSchedule, step_size, time_embedding, times

Array = np.ndarray
CAMERAS, TOKENS, WIDTH, TEXT, HORIZON, NUMBERS, TIME = 3, 2, 5, 6, 4, 3, 8
SIDE = 2
BOUNDS = {
    "batch": (1, 4),
    "views": (1, 5),
    "image_slots": (0, 40),
    "text": (0, 40),
    "prefix": (1, 40),
    "horizon": (1, 9),
    "times": (1, 9),
}


def spec(convention: str = "openpi", **changes: Any) -> Any:
    """A policy of three cameras, with odd sizes."""
    name = "pi05_openpi" if convention == "openpi" else "pi05"
    sizes = {
        "image_size": (SIDE, SIDE),
        "image_tokens": TOKENS,
        "max_tokens": TEXT,
        "horizon": HORIZON,
        "model_action_dim": NUMBERS,
        "action_dim": NUMBERS,
        "steps": 5,
    }
    return spec_of(name, **{**sizes, **changes})


class NumPyStage:
    """A stage whose outputs a function makes of its inputs; what was bound and run is remembered."""

    def __init__(self, contract: StageContract, compute: Callable[..., Mapping[str, Array]]) -> None:
        self.contract, self.compute = contract, compute
        self.bound: list[tuple[Mapping[str, Array], Mapping[str, Array]]] = []
        self.runs = 0

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        taken = {tensor.name: tensor for tensor in self.contract.inputs}
        assert inputs.keys() == taken.keys()
        for name, array in inputs.items():
            assert array.dtype == taken[name].dtype
            assert array.flags.c_contiguous
            assert len(array.shape) == len(taken[name].shape)
        self.bound.append((inputs, outputs))

        def run() -> None:
            self.runs += 1
            for name, value in self.compute(**inputs).items():
                if name in outputs:
                    assert outputs[name].shape == value.shape, name
                    outputs[name][...] = value

        return run


def contract(inputs: Mapping[str, Any], outputs: Mapping[str, Any], **bounds: tuple[int, int]) -> StageContract:
    """A contract of (dtype, *shape) by name."""
    made = (tuple(TensorContract(n, v[0], tuple(v[1:])) for n, v in part.items()) for part in (inputs, outputs))
    return StageContract(*made, {**BOUNDS, **bounds})


def see(images: Array) -> dict[str, Array]:
    rows = np.arange(1, TOKENS * WIDTH + 1, dtype=np.float32).reshape(TOKENS, WIDTH)
    return {"image_features": images.mean(axis=(1, 2, 3))[:, None, None] * rows}


def read(image_features: Array, token_ids: Array, prefix_mask: Array) -> dict[str, Array]:
    """The key is the sum of each token's features or its id, the value the number of valid tokens before it."""
    words = np.concatenate([image_features.sum(axis=2), token_ids], axis=1).astype(np.float32)
    before = np.maximum(np.cumsum(prefix_mask, axis=1) - 1, 0)
    return {
        "prefix_key.0": words[:, None, :, None],
        "prefix_value.0": before.astype(np.float32)[:, None, :, None],
        "prefix_hidden": np.repeat(words[:, :, None], WIDTH, axis=2),
    }


def flow(x_t: Array, time: Array, mask: Array, key: Array, value: Array) -> Array:
    weight = mask * key[:, 0, :, 0] / (1 + value[:, 0, :, 0])
    timed = np.sin(x_t) * time
    return timed + timed.mean(axis=1, keepdims=True) + weight.sum(axis=1)[:, None, None] / 100


def denoise(**given: Array) -> dict[str, Array]:
    prefix = (given["prefix_mask"], given["prefix_key.0"], given["prefix_value.0"])
    if "noise" in given:
        return {"actions": whole(given["noise"], 5, prefix)}
    if "time_index" in given:
        rows = np.append(times("float32-sum", 5), np.float32(0.0))
        time = time_embedding(rows, TIME).sum(axis=-1)[given["time_index"]][..., None]
    else:
        time = given["time_embedding"].sum(axis=-1, keepdims=True)
    return {"velocity": flow(given["x_t"], time, *prefix).astype(np.float32)}


def whole(
    noise: Array, steps: int, prefix: Any, committed: Array | None = None, schedule: Any = "float32-sum"
) -> Array:
    """The whole flow, written out."""
    x, count = noise.copy(), 0 if committed is None else len(committed)
    for time in times(schedule, steps):
        each = np.full((HORIZON,), time, np.float32)
        each[:count] = 0.0
        x[:, :count] = committed if count else x[:, :count]
        embedded = time_embedding(each, TIME).sum(axis=-1, dtype=np.float32)[None, :, None]
        x = x + step_size(steps) * flow(x, embedded, *prefix).astype(np.float32)
    x[:, :count] = committed if count else x[:, :count]
    return x


IMAGES = ("float32", "views", 3, SIDE, SIDE)
FEATURES = ("float32", "views", TOKENS, WIDTH)
MASK = ("int64", "batch", "prefix")
ACTIONS = ("float32", "batch", "horizon", NUMBERS)
KEPT = {f"prefix_{name}.0": ("float32", "batch", 1, "prefix", 1) for name in ("key", "value")}
PREFIX = {
    "image_features": ("float32", "batch", "image_slots", WIDTH),
    "token_ids": ("int64", "batch", "text"),
    "prefix_mask": MASK,
}
HIDDEN = {"prefix_hidden": ("float32", "batch", "prefix", WIDTH)}
STEP = {"x_t": ACTIONS, "time_embedding": ("float32", "batch", "times", TIME), "prefix_mask": MASK, **KEPT}
INDEXED = {"x_t": ACTIONS, "time_index": ("int64", "batch", "times"), "prefix_mask": MASK, **KEPT}
WHOLE = {"noise": ACTIONS, "prefix_mask": MASK, **KEPT}


def stages(inputs: Mapping[str, Any] = STEP, **changes: StageContract) -> dict[str, NumPyStage]:
    """The three stages; `changes` are other contracts."""
    given = {
        "vision": contract({"images": IMAGES}, {"image_features": FEATURES}),
        "prefix": contract(PREFIX, {**KEPT, **HIDDEN}),
        "denoise": contract(inputs, {"actions" if "noise" in inputs else "velocity": ACTIONS}),
    }
    functions = {"vision": see, "prefix": read, "denoise": denoise}
    return {name: NumPyStage(changes.get(name, made), functions[name]) for name, made in given.items()}


def prepared(seed: int, mask: tuple[bool, ...] = (True, True, True), tokens: int = 3) -> Prepared:
    rng = np.random.default_rng(seed)
    return Prepared(
        images=rng.normal(size=(sum(mask), 3, SIDE, SIDE)).astype(np.float32),
        camera_mask=np.array(mask),
        token_ids=rng.integers(1, 50, tokens),
        state=rng.normal(size=32).astype(np.float32),
        raw_state=rng.normal(size=8).astype(np.float32),
    )


def noise(batch: int = 1, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(batch, HORIZON, NUMBERS)).astype(np.float32)


def expected_prefix(one: Prepared) -> tuple[Array, Array, Array]:
    features = see(one.images)["image_features"].reshape(1, -1, WIDTH)
    mask = np.ones((1, features.shape[1] + len(one.token_ids)), np.int64)
    made = read(features, one.token_ids[None], mask)
    return mask, made["prefix_key.0"], made["prefix_value.0"]


MASKS = [(True, True, True), (True, False, True), (False, True, False)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("steps", [1, 3, 10])
@pytest.mark.parametrize(("compact", "batched"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("convention", ["openpi", "lerobot"])
def test_actions(convention: str, mask: Any, steps: int, compact: bool, batched: bool) -> None:
    one, policy = prepared(3, mask), spec(convention)
    made = stages()
    loop = Loop(policy, made, Features(compact=compact, batched=batched))
    got = loop.run([one], noise(), steps=steps)
    np.testing.assert_allclose(
        got.actions, whole(noise(), steps, expected_prefix(one), schedule=policy.schedule), rtol=0, atol=1e-6
    )
    assert made["vision"].runs == (1 if batched else sum(mask))
    assert (made["prefix"].runs, made["denoise"].runs) == (1, steps)
    assert len(got.timings["denoise"]) == steps


@pytest.mark.parametrize(("convention", "wanted"), [("openpi", [1, 1, 0, 0, 1, 1]), ("lerobot", [1, 1, 1, 1, 0, 0])])
def test_padding_is_where_the_originals_have_it(convention: str, wanted: list[int]) -> None:
    made = stages()
    loop = Loop(spec(convention), made, Features(compact=False))
    loop.run([prepared(3, MASKS[2])], noise())
    loop.run([prepared(3, MASKS[1])], noise())
    given = made["prefix"].bound[-1][0]
    assert given["prefix_mask"].tolist() == [[*wanted, 1, 1, 1, 0, 0, 0]]
    assert given["token_ids"].shape == (1, TEXT)
    assert not given["token_ids"][0, 3:].any()
    there = given["image_features"][0].any(axis=1)
    assert there.tolist() == [bool(value) for value in wanted], "nothing is left of the frame before"


def test_one_frame_is_bound_once_and_nothing_is_copied() -> None:
    made = stages()
    loop = Loop(spec(), made, Features())
    for seed in range(3):
        loop.run([prepared(seed)], noise(), steps=7)
    assert [len(stage.bound) for stage in made.values()] == [1, 1, 1]
    (seen,), (placed,), (moved,) = (stage.bound for stage in made.values())
    assert np.shares_memory(seen[1]["image_features"], placed[0]["image_features"])
    assert moved[0]["prefix_mask"] is placed[0]["prefix_mask"]
    for name in KEPT:
        assert moved[0][name] is placed[1][name]
    assert "prefix_hidden" not in placed[1], "nobody reads it"


def test_another_length_takes_the_same_memory() -> None:
    made = stages()
    loop = Loop(spec(), made, Features())
    for tokens in (6, 2, 5):
        one = prepared(tokens, tokens=tokens)
        got = loop.run([one], noise()).actions
        np.testing.assert_allclose(got, whole(noise(), 5, expected_prefix(one)), rtol=0, atol=1e-6)
    first, second, third = (bound[1]["prefix_key.0"] for bound in made["prefix"].bound)
    assert first.ctypes.data == second.ctypes.data == third.ctypes.data


def test_rows_of_a_batch() -> None:
    """Rows of one, two and three images and other texts: five images at most, so two runs of the vision stage."""
    rows = [prepared(seed, mask, seed) for seed, mask in zip((1, 2, 4), MASKS, strict=True)]
    for compact in (True, False):
        made = stages()
        got = Loop(spec(), made, Features(compact=compact)).run(rows, noise(3)).actions
        assert made["vision"].runs == 2
        for row, one in enumerate(rows):
            wanted = whole(noise(3)[row : row + 1], 5, expected_prefix(one))
            np.testing.assert_allclose(got[row : row + 1], wanted, rtol=0, atol=1e-6)


def test_no_camera_at_all() -> None:
    one = prepared(1, ())
    made = stages()
    got = Loop(spec(cameras=()), made, Features()).run([one], noise()).actions
    np.testing.assert_allclose(got, whole(noise(), 5, expected_prefix(one)), rtol=0, atol=1e-6)
    assert made["vision"].runs == 0


@pytest.mark.parametrize("inputs", [STEP, INDEXED], ids=["embedding", "table"])
def test_committed_actions_are_kept_at_time_zero(inputs: Any) -> None:
    one, kept = prepared(2), np.random.default_rng(9).normal(size=(2, NUMBERS)).astype(np.float32)
    loop = loop_of(inputs)
    got = loop.run([one], noise(), committed=[kept]).actions
    np.testing.assert_array_equal(got[0, :2], kept)
    np.testing.assert_allclose(got, whole(noise(), 5, expected_prefix(one), kept), rtol=0, atol=1e-6)
    free = loop.run([one], noise()).actions
    np.testing.assert_allclose(free, whole(noise(), 5, expected_prefix(one)), rtol=0, atol=1e-6)


def loop_of(inputs: Any, schedule: FixedSchedule | None = None, **changes: Any) -> Loop:
    table, graph = "time_index" in inputs, "noise" in inputs
    fixed = schedule or (FixedSchedule.of("float32-sum", 5) if table or graph else None)
    return Loop(spec(**changes), stages(inputs), Features(table=table, whole=graph), fixed)


@pytest.mark.parametrize("inputs", [INDEXED, WHOLE], ids=["table", "graph"])
def test_a_fixed_schedule(inputs: Any) -> None:
    one, loop = prepared(4), loop_of(inputs)
    got = loop.run([one], noise())
    np.testing.assert_allclose(got.actions, whole(noise(), 5, expected_prefix(one)), rtol=0, atol=1e-6)
    assert len(got.timings["denoise"]) == (1 if inputs is WHOLE else 5)
    with pytest.raises(GenerationError, match="built for 5 steps by float32-sum and can't run 4"):
        loop.run([one], noise(), steps=4)
    with pytest.raises(BundleError, match="can't run 6 by float32-sum"):
        loop_of(inputs, steps=6)
    with pytest.raises(BundleError, match="can't run 5 by float64-linear"):
        loop_of(inputs, convention="lerobot")
    with pytest.raises(BundleError, match="doesn't say the schedule"):
        Loop(spec(), stages(inputs), Features(table="time_index" in inputs, whole="noise" in inputs))


def test_where_no_action_can_be_committed() -> None:
    kept = [np.zeros((1, NUMBERS), np.float32)]
    with pytest.raises(GenerationError, match="has the whole loop inside, so it can't keep committed actions"):
        loop_of(WHOLE).run([prepared(1)], noise(), committed=kept)
    without = FixedSchedule.of("float32-sum", 5, zero_row=False)
    with pytest.raises(GenerationError, match="without a row for time 0"):
        loop_of(INDEXED, without).run([prepared(1)], noise(), committed=kept)
    one_time = {**STEP, "time_embedding": ("float32", "batch", 1, TIME)}
    with pytest.raises(GenerationError, match="takes one time for all actions"):
        loop_of(one_time).run([prepared(1)], noise(), committed=kept)
    with pytest.raises(GenerationError, match="leave nothing to infer"):
        loop_of(STEP).run([prepared(1)], noise(), committed=[np.zeros((4, NUMBERS), np.float32)])


def test_a_time_for_each_action_may_be_all_a_stage_takes() -> None:
    loop = loop_of({**STEP, "time_embedding": ("float32", "batch", HORIZON, TIME)})
    kept = np.ones((2, NUMBERS), np.float32)
    one = prepared(1)
    np.testing.assert_allclose(
        loop.run([one], noise()).actions, whole(noise(), 5, expected_prefix(one)), rtol=0, atol=1e-6
    )
    got = loop.run([one], noise(), committed=[kept]).actions
    np.testing.assert_allclose(got, whole(noise(), 5, expected_prefix(one), kept), rtol=0, atol=1e-6)


def fixed(shapes: Mapping[str, Any], **sizes: int) -> dict[str, tuple[Dim, ...]]:
    """Shapes with some symbols given a size."""
    return {
        name: tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in s) for name, s in shapes.items()
    }


FULL = {"image_slots": CAMERAS * TOKENS, "text": TEXT, "prefix": CAMERAS * TOKENS + TEXT}


def fixed_stages(**sizes: int) -> dict[str, NumPyStage]:
    return stages(
        vision=contract(fixed({"images": IMAGES}, **sizes), fixed({"image_features": FEATURES}, **sizes)),
        prefix=contract(fixed(PREFIX, **sizes), fixed({**KEPT, **HIDDEN}, **sizes)),
        denoise=contract(fixed(STEP, **sizes), fixed({"velocity": ACTIONS}, **sizes)),
    )


def test_stages_of_fixed_sizes() -> None:
    """What a compiler without symbolic sizes makes: always all slots, two images at a time, one observation."""
    made = fixed_stages(batch=1, views=2, horizon=HORIZON, times=1, **FULL)
    loop = Loop(spec(), made, Features(compact=False))
    for mask in MASKS:
        one = prepared(5, mask)
        got = loop.run([one], noise()).actions
        np.testing.assert_allclose(got, whole(noise(), 5, expected_prefix(one)), rtol=0, atol=1e-6)
    assert made["vision"].runs == 2 + 1 + 1
    with pytest.raises(GenerationError, match="prefix stage was built for batch 1 and 2 is needed"):
        loop.run([prepared(1), prepared(2)], noise(2))
    with pytest.raises(BundleError, match="fixed image_slots and text and prefix, and leaving masked tokens out"):
        Loop(spec(), fixed_stages(**FULL), Features())


def changed(name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, NumPyStage]:
    return stages(**{name: contract(inputs, outputs)})


REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    ("another prefix", lambda: fixed_stages(**{**FULL, "prefix": 20}), "built for prefix 20 and 12 is needed"),
    ("another horizon", lambda: fixed_stages(horizon=9, **FULL), "built for horizon 9 and 4 is needed"),
    (
        "another input",
        lambda: changed("denoise", {**STEP, "guidance": ("float32", 1)}, {"velocity": ACTIONS}),
        "don't agree on guidance",
    ),
    ("a missing key", lambda: changed("prefix", PREFIX, {"prefix_key.0": KEPT["prefix_key.0"]}), "prefix_value.0"),
    (
        "keys of two kinds",
        lambda: changed(
            "denoise", {**STEP, "prefix_key.0": ("float16", "batch", 1, "prefix", 1)}, {"velocity": ACTIONS}
        ),
        "prefix_key.0 as float16",
    ),
    (
        "keys that depend on something else",
        lambda: stages(
            prefix=contract(PREFIX, {**KEPT, "prefix_key.0": ("float32", "batch", 1, "text", 1)}),
            denoise=contract({**STEP, "prefix_key.0": ("float32", "batch", 1, "text", 1)}, {"velocity": ACTIONS}),
        ),
        "prefix_key.0 depends on text",
    ),
    (
        "half precision actions",
        lambda: changed("denoise", {**STEP, "x_t": ("float16", *ACTIONS[1:])}, {"velocity": ACTIONS}),
        "x_t as float16",
    ),
    (
        "two sizes of a batch",
        lambda: changed(
            "denoise", {**STEP, "x_t": ("float32", 1, *ACTIONS[2:])}, {"velocity": ("float32", 2, *ACTIONS[2:])}
        ),
        "velocity as float32 \\[2, 'horizon', 3\\]",
    ),
    (
        "no time",
        lambda: changed("denoise", {k: v for k, v in STEP.items() if k != "time_embedding"}, {"velocity": ACTIONS}),
        "don't agree on time_embedding",
    ),
    ("no vision", lambda: {k: v for k, v in stages().items() if k != "vision"}, "lacks the policy's stages vision"),
    ("a table nobody spoke of", lambda: stages(INDEXED), "takes time_index, and its features say otherwise"),
]


@pytest.mark.parametrize(("make", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_stages_that_dont_fit(make: Any, words: str) -> None:
    with pytest.raises(BundleError, match=words):
        Loop(spec(), make(), Features(compact=False))


def test_more_than_a_stage_is_bounded_to() -> None:
    small = contract(PREFIX, {**KEPT, **HIDDEN}, prefix=(1, 11))
    with pytest.raises(BundleError, match="built for prefix 1 to 11 and 12 is needed"):
        Loop(spec(), stages(prefix=small), Features())


def test_a_failure_in_the_middle_is_forgotten() -> None:
    made, one = stages(), prepared(1)
    loop = Loop(spec(), made, Features())

    def fail(step: int, *_: Any) -> None:
        if step == 2:
            raise KeyboardInterrupt

    for other in (one, prepared(2, MASKS[2])):
        with pytest.raises(KeyboardInterrupt):
            loop.run([other], noise(), watch=fail)
        np.testing.assert_allclose(
            loop.run([one], noise()).actions, whole(noise(), 5, expected_prefix(one)), rtol=0, atol=1e-6
        )


def test_what_a_watcher_is_told() -> None:
    seen: list[tuple[int, Array, Array]] = []
    one = prepared(1)
    got = Loop(spec(), stages(), Features()).run(
        [one], noise(), steps=3, watch=lambda step, x, v: seen.append((step, x.copy(), v.copy()))
    )
    assert [step for step, _, _ in seen] == [0, 1, 2]
    np.testing.assert_array_equal(seen[0][1], noise())
    for (_, x, v), (_, after, _) in zip(seen, [*seen[1:], (3, got.actions, None)], strict=True):
        np.testing.assert_array_equal(after, x + step_size(3) * v)


@pytest.mark.parametrize("value", [1, "yes", 0.0, []])
def test_features_that_mean_nothing(value: Any) -> None:
    with pytest.raises(BundleError, match="feature prefix-compaction is"):
        Features.from_json({"prefix-compaction": value})


def test_features() -> None:
    assert Features.from_json({}) == Features()
    assert Features.from_json({"loop": "step", "kv-only": True, "gate-up": "fused"}) == Features()
    read_back = Features.from_json(
        {"prefix-compaction": False, "view-batching": False, "time-table": True, "loop": "graph"}
    )
    assert read_back == Features(compact=False, batched=False, table=True, whole=True)
    assert Features.from_json({"loop": "unrolled"}).whole
