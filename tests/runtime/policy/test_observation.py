"""Observations in every spelling, and every bad one refused with a sentence that says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_inputs import spec_of, statistics_of, tokenizer_of

from edgewright.errors import BundleError, ObservationError
from edgewright.runtime.policy.observation import Prepared, prepare
from edgewright.runtime.policy.spec import PolicySpec, Statistics

RNG = np.random.default_rng(4)
IMAGES = [RNG.integers(2, 256, (20, 27, 3), dtype=np.uint8) for _ in range(3)]
STATE = RNG.normal(0, 0.5, 8).astype(np.float32)
NAMES = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


def prepared(observation: Any, name: str = "pi05_openpi", **changes: Any) -> Prepared:
    return prepare(spec_of(name, **changes), statistics_of(name), tokenizer_of(name), observation)


def same(found: Prepared, expected: Prepared) -> None:
    for field in ("images", "camera_mask", "token_ids", "state", "raw_state"):
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field))


def plain(**changes: Any) -> dict[str, Any]:
    """An observation that is right, or one with other or no (None) entries."""
    right = {"images": dict(zip(NAMES, IMAGES, strict=True)), "state": STATE, "prompt": "pick_up it"} | changes
    return {key: value for key, value in right.items() if value is not None}


def test_shapes_and_dtypes() -> None:
    found = prepared(plain())
    assert (found.images.shape, found.images.dtype) == ((3, 3, 28, 28), np.float32)
    assert found.camera_mask.tolist() == [True] * 3
    assert (found.state.shape, found.state.dtype) == ((32,), np.float32)
    assert found.token_ids.dtype == np.int64
    np.testing.assert_array_equal(found.raw_state, STATE)
    assert found.notes == ()
    assert np.abs(found.images).max() <= 1
    assert all((found.images[i] != found.images[j]).any() for i, j in ((0, 1), (1, 2)))


def test_the_order_of_the_cameras_is_the_specs() -> None:
    backwards = dict(reversed(list(zip(NAMES, IMAGES, strict=True))))
    same(prepared(plain(images=backwards)), prepared(plain()))


@pytest.mark.parametrize(
    "observation",
    [
        {f"observation.images.{n}": i for n, i in zip(NAMES, IMAGES, strict=True)}
        | {"observation.state": STATE, "task": "pick_up it"},
        {f"observation/{n}": i for n, i in zip(NAMES, IMAGES, strict=True)}
        | {"observation/state": STATE, "prompt": "pick_up it"},
        {"observation/image": IMAGES[0], "observation/wrist_image": IMAGES[1], "right_wrist_0_rgb": IMAGES[2]}
        | {"observation/state": STATE, "prompt": "pick_up it"},
        {"observation/exterior_image_1_left": IMAGES[0], "observation/wrist_image_left": IMAGES[1]}
        | {"observation/joint_position": STATE[:7], "observation/gripper_position": STATE[7:], "prompt": "pick_up it"}
        | {"images": {"observation.images.right_wrist_0_rgb": IMAGES[2]}},
        plain(images={n: i.transpose(2, 0, 1) for n, i in zip(NAMES, IMAGES, strict=True)}),
        plain(images={n: i[None] for n, i in zip(NAMES, IMAGES, strict=True)})
        | {"state": STATE[None], "prompt": ["pick_up it"]},
        plain(prompt=np.array("pick_up it"), timestamp=0.1, frame_index=3, action=STATE, task=None),
        plain(prompt=b"pick_up it") | {"next.done": True, "observation.state_is_pad": np.zeros(1, bool)},
    ],
    ids=["lerobot", "openpi", "libero", "droid", "channels-first", "batch", "dataset", "bytes"],
)  # fmt: skip
def test_spellings(observation: Mapping[str, Any]) -> None:
    same(prepared(observation), prepared(plain()))


def test_lerobots_names() -> None:
    spec = {"cameras": ("observation.images.top", "observation.image"), "state_dim": 8}
    observation = {"observation.images.top": IMAGES[0], "observation.image": IMAGES[1]}
    observation |= {"observation.state": STATE, "task": "go"}
    found = prepared(observation, "pi05", **spec)
    short = {"images": {"image": IMAGES[1], "top": IMAGES[0]}, "state": STATE, "prompt": "go"}
    same(prepared(short, "pi05", **spec), found)
    with pytest.raises(ObservationError, match="wrist_image is neither a camera"):
        prepared(observation | {"observation/wrist_image": IMAGES[1]}, "pi05", **spec)


@pytest.mark.parametrize("here", [(0,), (0, 1), (0, 2), (1, 2), (2,)])
def test_missing_and_masked_cameras(here: tuple[int, ...]) -> None:
    given_images = {NAMES[index]: IMAGES[index] for index in here}
    found = prepared(plain(images=given_images))
    assert found.camera_mask.tolist() == [index in here for index in range(3)]
    np.testing.assert_array_equal(found.images, prepared(plain()).images[list(here)])
    masks = {name: np.bool_(index in here) for index, name in enumerate(NAMES)}
    same(prepared(plain() | {"image_mask": masks}), found)
    others = {name: IMAGES[index] if index in here else None for index, name in enumerate(NAMES)}
    same(prepared(plain(images=others)), found)


def test_a_required_camera_may_be_masked_on_purpose_only() -> None:
    needed = {"required_cameras": NAMES[:1]}
    observation = plain(images={NAMES[1]: IMAGES[1]})
    with pytest.raises(ObservationError, match=r"no image of base_0_rgb, which the policy needs; it has images\["):
        prepared(observation, **needed)
    found = prepared(observation | {"image_mask": {NAMES[0]: False}}, **needed)
    assert found.camera_mask.tolist() == [False, True, False]


def test_a_policy_without_cameras_sees_nothing() -> None:
    found = prepared({"state": STATE, "prompt": "go"}, cameras=())
    assert found.images.shape == (0, 3, 28, 28)
    assert found.camera_mask.shape == (0,)


def test_float_images() -> None:
    levels = np.array([0, 51, 255], np.uint8)
    image = np.broadcast_to(levels[:, None, None], (3, 28, 3))[:, :, :]
    image = np.repeat(image, 10, axis=0)[:28]
    for name, tolerance in (("pi05_openpi", 0.008), ("pi05", 1e-6)):
        camera = spec_of(name).cameras[0]
        whole = prepared({"images": {camera: image}, "state": STATE, "prompt": "go"}, name)
        for dtype in (np.float16, np.float32, np.float64):
            observation = {"images": {camera: (image / 255).astype(dtype)}, "state": STATE, "prompt": "go"}
            error = 6e-4 if dtype == np.float16 else 0.0
            found = prepared(observation, name).images
            np.testing.assert_allclose(found, whole.images, rtol=0, atol=tolerance + error)


def test_a_state_keeps_its_precision() -> None:
    """A list is float64 for openpi, which computes in it, and float32 for LeRobot, whose tensors are."""
    for name, dtype in (("pi05_openpi", np.float64), ("pi05", np.float32)):
        camera = spec_of(name).cameras[0]
        observation = {"images": {camera: IMAGES[0]}, "prompt": "go"}
        assert prepared(observation | {"state": [0.1] * 8}, name).raw_state.dtype == dtype
        assert prepared(observation | {"state": np.zeros(8, int)}, name).raw_state.dtype == dtype
        assert prepared(observation | {"state": np.zeros(8)}, name).raw_state.dtype == np.float64


def test_a_policy_without_a_state() -> None:
    spec = {"state_dim": 0, "prompt": "text-newline"}
    found = prepared(plain(state=None), **spec)
    assert not found.state.any()
    assert found.state.shape == (32,)
    assert found.raw_state.shape == (0,)
    noted = prepared(plain(), **spec)
    assert noted.notes == ("the policy takes no state: state has no effect",)
    same(noted, found)


def test_notes() -> None:
    dark = np.zeros((20, 27, 3), np.uint8)
    masked = {"image_mask": {NAMES[1]: False, NAMES[2]: False}}
    assert prepared(plain(images={NAMES[0]: dark}, **masked)).notes == ()
    dark[3, 4] = 1
    note = prepared(plain(images={NAMES[0]: dark}, **masked)).notes
    assert note == (
        "the uint8 image images['base_0_rgb'] has no level above 1: is it a float image that was cast to uint8?",
    )
    (cut,) = prepared(plain(prompt="put it down " * 40)).notes
    assert "was cut to 80" in cut


def test_what_is_missing_is_noted() -> None:
    found = prepared(plain(images={NAMES[0]: IMAGES[0]}))
    assert found.notes == (f"no image of {NAMES[1]}: it is masked", f"no image of {NAMES[2]}: it is masked")
    same(found, prepared(plain(images={NAMES[0]: IMAGES[0], NAMES[1]: None}, image_mask={NAMES[2]: False})))
    for text in ("", " \n"):
        assert prepared(plain(prompt=text)).notes == ("the prompt is empty: the policy isn't told what to do",)


@pytest.mark.parametrize(("low", "high", "most"), [("q01", "q99", 3.0), ("min", "max", 3.0), ("mean", "std", 10.0)])
def test_a_state_far_from_the_data_is_noted(low: str, high: str, most: float) -> None:
    """Range or deviation is 0.5 to 4, and 0 at the last number, which never moved."""
    name, rng = "pi05_openpi", np.random.default_rng(7)
    first, width = rng.normal(size=8), np.linspace(0.5, 4, 8)
    width[7] = 0
    above = first if low == "mean" else first + width
    known = statistics_of(name)
    own = {low: first, high: width if low == "mean" else above}
    spec = spec_of(name, prompt="text", state_norm="identity")
    statistics = Statistics(own, known.actions)

    def noted(state: np.ndarray) -> tuple[str, ...]:
        return prepare(spec, statistics, tokenizer_of(name), plain(state=state)).notes

    near, far = most * width * 0.99, most * width * 1.01 + 1e-3
    assert noted(first - near) == noted(above + near) == ()
    state = first.copy()
    state[[1, 7]], state[4] = (first - far)[[1, 7]], (above + far)[4]
    (note,) = noted(state)
    assert "trained on at 1, 4: check" in note


def test_a_state_is_named_once() -> None:
    with pytest.raises(ObservationError, match="The state has the shape"):
        prepared(plain(state=STATE[:3]))
    with pytest.raises(ObservationError, match="The state observation/state has the shape"):
        prepared({**plain(state=None), "observation/state": STATE[:3]})


def test_the_observation_is_left_as_it_was() -> None:
    observation = plain()
    before = {key: np.array(value) for key, value in observation["images"].items()}
    prepared(observation)
    for key, value in before.items():
        np.testing.assert_array_equal(observation["images"][key], value)


def images(image: Any) -> dict[str, Any]:
    return plain(images={NAMES[0]: image})


UNIT = np.full((20, 27, 3), 0.5, np.float32)
BAD: dict[str, tuple[Any, str]] = {
    "no mapping": ([1], r"a mapping of images, state and prompt, but this is of type list"),
    "nothing": ({}, r"no image that isn't masked, .*: send at least one of base_0_rgb, left_wri"),
    "a key that is no text": ({3: 1}, r"a key that is no text, of type int"),
    "an unknown camera": (plain(images={"top": IMAGES[0]}), r"top is neither a camera .* are base_0_rgb, left_"),
    "an unknown flat camera": (plain() | {"observation.images.top": IMAGES[0]}, r"observation.images.top is neither"),
    "an unknown key": (plain() | {"promt": "x"}, r"promt is neither a camera of this policy nor anything else"),
    "a fourth camera": (plain() | {"observation/image_4": IMAGES[0]}, r"observation/image_4 is neither a camera"),
    "a camera twice": (plain() | {"observation/image": IMAGES[0]}, r"image of camera base_0_rgb twice, as images"),
    "state twice": (plain() | {"observation.state": STATE}, r"the state twice, as state and as observation.state"),
    "prompt twice": (plain() | {"task": "x"}, r"the prompt twice, as prompt and as task"),
    "images no mapping": (plain(images=IMAGES), r"images is of type list: send a mapping by camera name"),
    "a mask of no camera": (plain() | {"image_mask": {"top": True}}, r"top is neither"),
    "a mask that is none": (plain() | {"image_mask": {NAMES[0]: "yes"}}, r"not numbers"),
    "a mask of 2": (plain() | {"image_mask": {NAMES[0]: 2}}, r"is not true or false"),
    "a mask of a missing one": (images(IMAGES[0]) | {"image_mask": {NAMES[1]: True}}, r"no image of left_wrist_0_rgb"),
    "all masked": (plain() | {"image_mask": dict.fromkeys(NAMES, False)}, r"no image that isn't masked"),
    "int32 image": (images(IMAGES[0].astype(np.int32)), r"is int32, but images are uint8 from 0 to 255 or float"),
    "bool image": (images(IMAGES[0] > 4), r"is bool, but images are uint8"),
    "levels as float": (images(IMAGES[0].astype(np.float32)), r"float image .* goes from 2 to 255, but .* from 0 to 1"),
    "a range of -1 to 1": (images(UNIT * 4 - 2.5), r"goes from -0.5 to -0.5, but float images are from 0 to 1"),
    "NaN in an image": (images(np.where(np.arange(3) == 1, np.nan, UNIT)), r"values that are no number \(NaN or inf"),
    "infinite image": (images(np.where(np.arange(3) == 1, np.inf, UNIT)), r"values that are no number"),
    "a grey image": (images(IMAGES[0][:, :, 0]), r"has the shape \[20, 27\], which is not one RGB picture"),
    "an image with alpha": (images(np.zeros((20, 27, 4), np.uint8)), r"shape \[20, 27, 4\]"),
    "two images": (images(np.zeros((2, 20, 27, 3), np.uint8)), r"shape \[2, 20, 27, 3\]"),
    "an image of 3 rows": (images(np.zeros((3, 20, 3), np.uint8)), r"shape \[3, 20, 3\]"),
    "an empty image": (images(np.zeros((0, 20, 3), np.uint8)), r"shape \[0, 20, 3\]"),
    "a flat image": (images(np.zeros((1, 500, 3), np.uint8)), r"1 x 500 pixels scaled to 28 x 28 would have no pixel"),
    "a text as image": (images("cat.png"), r"images\['base_0_rgb'\] is of type str, not numbers"),
    "an object as image": (images(object()), r"is of type object, not numbers"),
    "a ragged list": (images([[1], [1, 2]]), r"is of type list, which is no array"),
    "no state": (plain(state=None), r"no state, but the policy takes 8 numbers"),
    "a state too short": (plain(state=STATE[:7]), r"shape \[7\], but the policy was trained on 8 numbers: send \[8\]"),
    "a state too long": (plain(state=np.zeros(32)), r"shape \[32\], but .* send \[8\], without padding"),
    "two states": (plain(state=np.zeros((2, 8))), r"shape \[2, 8\]"),
    "NaN in the state": (plain(state=np.where(np.arange(8) % 5 == 1, np.nan, STATE)), r"NaN or infinite at 1, 6, so"),
    "infinite state": (plain(state=np.where(np.arange(8) == 0, -np.inf, STATE)), r"infinite at 0, so"),
    "a bool state": (plain(state=np.ones(8, bool)), r"state is bool, but a state is numbers"),
    "a text as state": (plain(state="home"), r"state is of type str, not numbers"),
    "a complex state": (plain(state=np.ones(8, complex)), r"is an array of complex128, not numbers"),
    "half of a state": (plain(state=None) | {"observation/joint_position": STATE[:7]}, r"has the shape \[7\]"),
    "state and parts": (plain() | {"observation/joint_position": STATE}, r"the state twice"),
    "a state without measure": (plain(state=np.full(8, 1e300)), r"no place in float32"),
    "a prompt that is no text": (plain(prompt=b"\xff"), r"prompt prompt is not UTF-8 text"),
    "no prompt": (plain(prompt=None), r"no prompt: send the instruction"),
    "a number as prompt": (plain(prompt=3), r"prompt is of type int, but an instruction is a text"),
    "two prompts": (plain(prompt=["a", "b"]), r"prompt is of type list"),
    "a surrogate in the prompt": (plain(prompt="a\ud800"), r"prompt can't be tokenized"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_observations(what: str) -> None:
    observation, message = BAD[what]
    with pytest.raises(ObservationError, match=message) as caught:
        prepared(observation)
    text = str(caught.value)
    assert re.fullmatch(r"[^\n]+: .+\.", text), text


def test_a_required_camera_that_is_missing_is_named() -> None:
    with pytest.raises(ObservationError, match="no image of right_wrist_0_rgb, which the policy needs"):
        prepared(plain(images={NAMES[0]: IMAGES[0]}), required_cameras=NAMES[2:])


def test_statistics_of_another_robot() -> None:
    statistics = statistics_of("pi05")
    short = Statistics({k: v[:6] for k, v in statistics.state.items()}, statistics.actions)
    for name in ("pi05", "pi05_openpi"):
        spec: PolicySpec = spec_of(name)
        observation = {"images": {spec.cameras[0]: IMAGES[0]}, "state": STATE, "prompt": "x"}
        with pytest.raises(BundleError, match="another robot"):
            prepare(spec, short, tokenizer_of(name), observation)


ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.binary(max_size=5),
        st.sampled_from([IMAGES[0], UNIT, STATE, np.array(["a"]), np.array(None), SimpleNamespace(), np.zeros((0, 3))]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = st.sampled_from(["images", "state", "prompt", "task", "image_mask", "observation/image", *NAMES, "observation."])
KEYS |= st.sampled_from(["observation/joint_position", "observation/gripper_position", "observation.state", ""])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, ANYTHING, max_size=6), st.booleans())
def test_whatever_comes_is_taken_or_refused_by_name(entries: dict[str, Any], good: bool) -> None:
    observation = (plain() | entries) if good else entries
    for name in ("pi05_openpi", "smolvla"):
        try:
            found = prepared(observation, name)
        except ObservationError:
            continue
        assert np.isfinite(found.images).all()
        assert np.isfinite(found.state).all()
