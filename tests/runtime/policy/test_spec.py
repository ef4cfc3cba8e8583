"""The spec of a policy and its statistics: written to the manifest and read back, wrong ones refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgewright.errors import BundleError
from edgewright.runtime.policy.spec import Limits, PolicySpec, Statistics

LIMITS = Limits(minimum=(-1.5, 0.0, 2.25), rate=(0.1, 1e-3, 7.0), deadline_ms=12.5, fallback="stop")
SPEC = PolicySpec(
    kind="pi05",
    convention="openpi",
    cameras=("base", "hand"),
    required_cameras=("hand",),
    image_size=(42, 28),
    image_tokens=6,
    resize="pil-center",
    state_dim=5,
    action_dim=3,
    model_state_dim=32,
    model_action_dim=32,
    horizon=11,
    steps=7,
    schedule="float32-sum",
    prompt="state",
    max_tokens=77,
    tokenizer="tokenizer.json",
    state_norm="quantile",
    action_norm="mean-std",
    steps_to_run=9,
    bins=200,
    delta_mask=(True, False, True),
    committed_actions=4,
    limits=LIMITS,
)


def stored() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(SPEC.to_json()))
    return content


def refused(data: Any, *words: str) -> None:
    with pytest.raises(BundleError) as caught:
        PolicySpec.from_json(data)
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_spec_is_read_back_as_it_was_written() -> None:
    assert PolicySpec.from_json(stored()) == SPEC
    plain = replace(SPEC, limits=Limits(), delta_mask=(), committed_actions=0)
    read = PolicySpec.from_json(json.loads(json.dumps(plain.to_json())))
    assert read == plain
    assert isinstance(read.cameras, tuple)
    assert isinstance(read.image_size, tuple)
    assert hash(read) == hash(plain)


def test_the_smallest_values_and_those_at_a_bound_are_taken() -> None:
    small = replace(
        SPEC, image_size=(1, 1), image_tokens=1, state_dim=0, action_dim=1, model_state_dim=0, model_action_dim=1,
        horizon=1, steps=1, steps_to_run=1, max_tokens=1, bins=2, delta_mask=(), committed_actions=0, limits=Limits(),
        cameras=(), required_cameras=(),
    )  # fmt: skip
    full = replace(
        SPEC, state_dim=32, action_dim=32, delta_mask=(True,) * 32, committed_actions=10, steps_to_run=11,
        limits=Limits(jump=(0.5,) * 32),
    )  # fmt: skip
    for spec in (small, full):
        assert PolicySpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("key", sorted(SPEC.to_json()))
def test_a_key_that_is_missing_is_named(key: str) -> None:
    data = stored()
    del data[key]
    refused(data, "lacks", key)


@pytest.mark.parametrize("key", sorted(LIMITS.to_json()))
def test_a_key_of_the_limits_that_is_missing_is_named(key: str) -> None:
    data = stored()
    del data["limits"][key]
    refused(data, "policy.limits", "lacks", key)


def test_keys_that_are_not_known_are_named() -> None:
    refused(stored() | {"zeal": 1, "color": 2}, "unknown", "color, zeal")
    refused(stored() | {"limits": LIMITS.to_json() | {"force": 3}}, "policy.limits", "force")
    for data in (None, [], 3, "policy"):
        refused(data, "an object")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("kind", "act", "pi05, pi0, smolvla"),
        ("kind", ["pi05"], "pi05, pi0, smolvla"),
        ("convention", "jax", "openpi, lerobot"),
        ("resize", "", "pil-center"),
        ("schedule", None, "float32-sum"),
        ("prompt", "none", "text-newline"),
        ("state_norm", "z", "quantile"),
        ("cameras", "base", "a list"),
        ("cameras", ["base", 3], "cameras[1]"),
        ("cameras", ["base", "base"], "each once"),
        ("required_cameras", ["other"], "policy.cameras"),
        ("image_size", [42], "2 values"),
        ("image_size", [42, 0], "image_size[1]"),
        ("image_tokens", 6.0, "an integer"),
        ("image_tokens", True, "an integer"),
        ("state_dim", -1, "at least 0"),
        ("state_dim", 33, "at most what the model takes"),
        ("action_dim", 0, "at least 1"),
        ("horizon", "11", "an integer"),
        ("steps", 0, "at least 1"),
        ("steps_to_run", 12, "horizon of 11"),
        ("committed_actions", 11, "below the horizon"),
        ("tokenizer", "", "a text"),
        ("bins", 1, "at least 2"),
        ("delta_mask", [1], "true or false"),
        ("delta_mask", [True] * 4, "delta_mask"),
        ("limits", None, "policy.limits"),
    ],
)
def test_values_that_are_wrong_are_refused(key: str, value: Any, words: str) -> None:
    refused(stored() | {key: value}, key.split("_")[0], words)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("minimum", [1.0, 2.0], "each of the 3"),
        ("maximum", [1.0, float("nan"), 2.0], "finite"),
        ("rate", [1.0, 0.0, 2.0], "above 0"),
        ("jump", [1.0, -1.0, 2.0], "above 0"),
        ("jump", 3, "a list"),
        ("deadline_ms", 0, "above 0"),
        ("deadline_ms", float("inf"), "finite"),
        ("deadline_ms", True, "finite"),
        ("fallback", "retry", "hold, last-chunk, stop"),
    ],
)
def test_limits_that_are_wrong_are_refused(key: str, value: Any, words: str) -> None:
    refused(stored() | {"limits": LIMITS.to_json() | {key: value}}, f"limits.{key}", words)


@pytest.mark.parametrize(
    ("low", "high", "where"),
    [([0.0, 2.0, 0.0], [1.0, 1.0, 1.0], "at 1"), ([0.0, 0.1, 0.1], [1.0, 0.1, 0.1], "at 1, 2")],
)
def test_limits_that_leave_no_action_are_refused(low: list[float], high: list[float], where: str) -> None:
    """No float32 number is 0.1."""
    limits = LIMITS.to_json()
    refused(stored() | {"limits": limits | {"minimum": low, "maximum": high}}, "limits.minimum", where)
    whole = stored() | {"limits": limits | {"minimum": [0.0, 1.0, -0.5], "maximum": [0.0, 1.0, 0.25]}}
    assert PolicySpec.from_json(whole).limits.maximum == (0.0, 1.0, 0.25)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_statistics_are_read_back_to_the_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = [rng.standard_normal(7) * 10.0 ** rng.integers(-300, 30) for _ in range(3)]
    vectors[1] = np.abs(vectors[1])
    whole = Statistics({"mean": vectors[0], "std": vectors[1]}, {"q01": vectors[2]})
    read = Statistics.from_json(json.loads(json.dumps(whole.to_json())))
    assert (sorted(read.state), sorted(read.actions)) == (["mean", "std"], ["q01"])
    np.testing.assert_array_equal(read.state["std"], vectors[1])
    np.testing.assert_array_equal(read.actions["q01"], vectors[2])
    assert read.state["mean"].dtype == np.float64


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "state and actions"),
        ({"state": {}}, "state and actions"),
        ({"state": {}, "actions": {}, "images": {}}, "state and actions"),
        ({"state": [], "actions": {}}, "an object"),
        ({"state": {"median": [1]}, "actions": {}}, "'median'"),
        ({"state": {"mean": 1}, "actions": {}}, "a list"),
        ({"state": {"mean": [[1]]}, "actions": {}}, "finite number"),
        ({"state": {"mean": [1, float("nan")]}, "actions": {}}, "finite number"),
        ({"state": {"mean": [1], "std": [1, 2]}, "actions": {}}, "one length"),
    ],
)
def test_statistics_that_are_wrong_are_refused(data: Any, words: str) -> None:
    with pytest.raises(BundleError) as caught:
        Statistics.from_json(data)
    assert words in str(caught.value)


@pytest.mark.parametrize(("name", "most"), [("horizon", 65536), ("max_tokens", 65536), ("steps", 1000)])
def test_numbers_that_no_robot_needs_are_refused(name: str, most: int) -> None:
    assert getattr(PolicySpec.from_json(stored() | {name: most}), name) == most
    refused(stored() | {name: most + 1}, f"policy.{name}", f"at most {most}")


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"std": [0.0, -1e-9]}, "std of dimension 1 is -1e-09"),
        ({"mean": [1e300, 0.0]}, "mean of dimension 0 is 1e+300"),
        ({"q01": [0.0, 2.0], "q99": [0.0, 1.5]}, "q01 of dimension 1 is above q99, 2 > 1.5"),
        ({"min": [0.5], "max": [0.25]}, "min of dimension 0 is above max"),
    ],
)
def test_statistics_that_no_data_has_are_refused(group: dict[str, list[float]], words: str) -> None:
    with pytest.raises(BundleError, match="statistics of actions must be some that data can have") as caught:
        Statistics.from_json({"state": {}, "actions": group})
    assert words in str(caught.value)
    flat = {"std": [0.0], "q01": [1.0], "q99": [1.0], "min": [-2.0], "max": [-2.0]}
    assert Statistics.from_json({"state": flat, "actions": {}}).state["std"].tolist() == [0.0]
