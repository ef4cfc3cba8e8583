"""The stages of robot policies against what lerobot and openpi compute, stage by stage, in both dialects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conftest import relative_error
from edgewright.runtime.policy.images import BLACK, resize
from plain_stages import PlainStages
from policy_goldens import POLICY_CASES, Frame, frame, policy_checkpoint, policy_scenarios, read, stepwise

DIALECTS = ("portable", "onnxruntime", "onnx-qdq")
#: Float32 sums in another order than PyTorch's, over the largest value of a tensor; the largest seen is 3.3e-6.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., PlainStages]:
    """A function (case, dialect, **options of build_policy) -> the stages, made once."""

    @functools.cache
    def make(case: str, dialect: str = "onnxruntime", **options: Any) -> PlainStages:
        return PlainStages(policy_checkpoint(case), dialect, tmp_path_factory.mktemp(case), **options)

    return make


each_case = pytest.mark.parametrize("case", POLICY_CASES)
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)
each_scenario = pytest.mark.parametrize(
    ("case", "scenario"), [(case, scenario) for case in POLICY_CASES for scenario in stepwise(case)]
)


@each_case
@each_dialect
def test_vision(case: str, dialect: str, stages: Any) -> None:
    if case == "smolvla":
        images = np.concatenate([read(case, "two_cameras", f"image.{i}") for i in range(3)])
        wanted = read(case, "two_cameras", "image_features")[:, 0] * np.float32(40**0.5)
    else:
        images, wanted = read(case, "three_cameras", "pixels")[0], read(case, "three_cameras", "image_features")[0]
    made = stages(case, dialect)
    got = made.run("vision", {"images": images})["image_features"]
    assert relative_error(got, wanted) < TOLERANCE
    for view in range(3):
        one = made.run("vision", {"images": images[view : view + 1]})["image_features"]
        assert relative_error(one, wanted[view : view + 1]) < TOLERANCE


@each_scenario
@each_dialect
def test_prefix_and_every_step(case: str, scenario: str, dialect: str, stages: Any) -> None:
    made, f = stages(case, dialect), frame(case, scenario)
    prefix = made.prefix(f)
    for layer, (keys, values) in enumerate(zip(f.keys, f.values, strict=True)):
        valid = f.mask[0].astype(bool)
        assert relative_error(prefix[f"prefix_key.{layer}"][0][:, valid], keys) < TOLERANCE
        assert relative_error(prefix[f"prefix_value.{layer}"][0][:, valid], values) < TOLERANCE
    for step in range(len(f.x_t)):
        assert relative_error(made.velocity(f, prefix, step), f.velocity[step]) < TOLERANCE, step


@each_dialect
def test_smaller_images_than_the_tower_was_trained_on(dialect: str, stages: Any, tmp_path: Any) -> None:
    """SmolVLA takes the positions that a smaller image's patches fall on."""
    checkpoint = policy_checkpoint("smolvla")
    spec = dataclasses.replace(checkpoint.spec, image_size=(24, 24))
    made = PlainStages(dataclasses.replace(checkpoint, spec=spec), dialect, tmp_path)
    shown = policy_scenarios("smolvla")["small_images"]["images"][0]
    images = [resize(read("smolvla", "input", name), spec) for name in shown.values()]
    images.append(np.full_like(images[0], BLACK))
    got = made.run("vision", {"images": np.stack(images)})["image_features"]
    wanted = read("smolvla", "small_images", "image_features")[:, 0] * np.float32(40**0.5)
    assert relative_error(got, wanted) < TOLERANCE
    f = frame("smolvla", "small_images")
    assert relative_error(made.velocity(f, made.prefix(f), 2), f.velocity[2]) < TOLERANCE


# -- what must not matter ----------------------------------------------------------------------------------------------


def without_masked(f: Frame) -> Frame:
    """Return a frame of batch 1 with its masked tokens taken out."""
    assert f.features is not None
    slots, text = f.features.shape[1], f.ids.shape[1]
    valid = f.mask[0].astype(bool)
    return dataclasses.replace(
        f,
        features=f.features[:, valid[:slots]],
        ids=f.ids[:, valid[slots : slots + text]],
        mask=f.mask[:, valid],
    )


MASKED = [
    ("pi05", "one_camera"),
    ("pi05", "middle_camera_missing"),
    ("pi05_libero", "one_camera"),
    ("pi0", "one_camera"),
]
MASKED += [("pi0_lerobot", "one_camera"), ("smolvla", "front_missing"), ("smolvla", "padded")]


@pytest.mark.parametrize(("case", "scenario"), MASKED)
@each_dialect
def test_masked_tokens_may_be_taken_out(case: str, scenario: str, dialect: str, stages: Any) -> None:
    made, f = stages(case, dialect), frame(case, scenario)
    compact, valid = without_masked(f), f.mask[0].astype(bool)
    assert compact.mask.shape[1] < f.mask.shape[1]
    full, short = made.prefix(f), made.prefix(compact)
    for name, array in short.items():
        assert relative_error(array, full[name][:, :, valid]) < 1e-6, name
    for step in range(len(f.x_t)):
        got, wanted = made.velocity(compact, short, step), made.velocity(f, full, step)
        assert relative_error(got, wanted) < 2e-6, step
        assert relative_error(got, f.velocity[step]) < TOLERANCE


@pytest.mark.parametrize(("case", "scenario"), MASKED)
@each_dialect
def test_what_masked_tokens_hold_has_no_effect(case: str, scenario: str, dialect: str, stages: Any) -> None:
    """To the bit; and a valid token has one, so that the comparison could fail."""
    made, f = stages(case, dialect), frame(case, scenario)
    rng, valid = np.random.default_rng(7), f.mask[0].astype(bool)
    assert f.features is not None
    slots, text = f.features.shape[1], f.ids.shape[1]
    noise = rng.standard_normal(f.features.shape).astype(np.float32) * 100
    words = rng.integers(0, 300, f.ids.shape)
    ids = np.where(f.mask[:, slots : slots + text] == 0, words, f.ids)
    other = dataclasses.replace(f, features=np.where(valid[None, :slots, None], f.features, noise), ids=ids)
    prefixes = [made.prefix(f), made.prefix(other)]
    for name, array in prefixes[0].items():
        np.testing.assert_array_equal(prefixes[1][name][:, :, valid], array[:, :, valid], err_msg=name)
    rubbish = {
        name: np.where(valid[None, None, :, None], array, np.float32(1e5)) for name, array in prefixes[1].items()
    }
    wanted = made.velocity(f, prefixes[0], 0)
    np.testing.assert_array_equal(made.velocity(f, rubbish, 0), wanted)
    moved = f.features.copy()
    moved[:, np.flatnonzero(valid[:slots])[0]] += 1
    changed = made.velocity(f, made.prefix(dataclasses.replace(f, features=moved)), 0)
    assert relative_error(changed, wanted) > 1e-4


@each_dialect
def test_a_batch_is_its_sequences(dialect: str, stages: Any) -> None:
    for case, scenario in (("pi05", "batch_of_two"), ("pi0", "batch_of_two"), ("smolvla", "batch")):
        made, f = stages(case, dialect), frame(case, scenario)
        together = made.velocity(f, made.prefix(f), 1)
        for row in range(2):
            one = slice(row, row + 1)
            alone = dataclasses.replace(
                f,
                features=None if f.features is None else f.features[one],
                ids=f.ids[one],
                mask=f.mask[one],
                state=None if f.state is None else f.state[one],
                x_t=f.x_t[:, one],
            )
            assert relative_error(made.velocity(alone, made.prefix(alone), 1), together[one]) < 2e-6
        assert relative_error(together[:1], together[1:]) > 1e-3


@each_case
@each_dialect
def test_a_time_for_each_action(case: str, dialect: str, stages: Any) -> None:
    """Equal times in every row are one time; another time in some rows changes the result."""
    scenario = "two_cameras" if case == "smolvla" else "three_cameras"
    made, f = stages(case, dialect), frame(case, scenario)
    prefix, horizon = made.prefix(f), f.x_t.shape[2]
    each = dataclasses.replace(f, time=np.repeat(f.time, horizon, axis=1))
    wanted = made.velocity(f, prefix, 3)
    assert relative_error(made.velocity(each, prefix, 3), wanted) < 1e-6
    each.time[3, :2] = f.time[0]
    assert relative_error(made.velocity(each, prefix, 3), wanted) > 1e-4


@each_dialect
def test_shorter_horizons(dialect: str, stages: Any) -> None:
    """SmolVLA's actions see those before them only, so fewer actions are the first of more; pi0.5's see all."""
    for case, scenario, causal in (("smolvla", "two_cameras", True), ("pi05", "three_cameras", False)):
        made, f = stages(case, dialect), frame(case, scenario)
        prefix = made.prefix(f)
        whole = made.velocity(f, prefix, 0)
        short = made.velocity(dataclasses.replace(f, x_t=f.x_t[:, :, :4]), prefix, 0)
        assert (relative_error(short, whole[:, :4]) < 2e-6) is causal


@each_case
@each_dialect
def test_a_prefix_without_images(case: str, dialect: str, stages: Any) -> None:
    """No image slots at all is as good as masked ones."""
    scenario = "two_cameras" if case == "smolvla" else "three_cameras"
    made, f = stages(case, dialect), frame(case, scenario)
    assert f.features is not None
    slots = f.features.shape[1]
    masked, bare = f.mask.copy(), dataclasses.replace(f, features=f.features[:, :0], mask=f.mask[:, slots:])
    masked[:, :slots] = 0
    hidden = dataclasses.replace(f, mask=masked)
    got, wanted = (made.velocity(x, made.prefix(x), 0) for x in (bare, hidden))
    assert relative_error(got, wanted) < 2e-6
    assert relative_error(got, f.velocity[0]) > 1e-3


# -- options -----------------------------------------------------------------------------------------------------------


@each_case
@each_dialect
def test_the_options_change_no_result(case: str, dialect: str, stages: Any) -> None:
    scenario = "two_cameras" if case == "smolvla" else "one_camera"
    plain, f = stages(case, dialect), frame(case, scenario)
    read_plain = plain.prefix(f)
    wanted = plain.velocity(f, read_plain, 1)
    turned = stages(case, dialect, kv_transposed=True)
    read_turned = turned.prefix(f)
    for name, array in read_plain.items():
        other = read_turned[name].swapaxes(2, 3) if "key" in name else read_turned[name]
        np.testing.assert_allclose(other, array, rtol=0, atol=1e-6 * float(np.abs(array).max()))
    assert relative_error(turned.velocity(f, read_turned, 1), wanted) < 2e-6
    whole = stages(case, dialect, kv_only=False)
    read_whole = whole.prefix(f)
    hidden = read_whole.pop("prefix_hidden")
    for name, array in read_plain.items():
        np.testing.assert_allclose(read_whole[name], array, rtol=0, atol=1e-6 * float(np.abs(array).max()))
    assert hidden.shape == (1, f.mask.shape[1], policy_checkpoint(case).sizes.text.width)
    if case == "smolvla":
        valid = f.mask[0].astype(bool)
        assert relative_error(hidden[:, valid], read(case, scenario, "prefix_hidden")[:, valid]) < TOLERANCE
        once = stages(case, dialect, cross_once=True, kv_transposed=True)
        assert relative_error(once.velocity(f, once.prefix(f), 1), wanted) < 2e-6
