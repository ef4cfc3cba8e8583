"""From raw observations to model inputs and from model outputs to actions: the goldens of both projects' pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from policy_inputs import CAMERAS, golden_of, spec_of, statistics_of, tokenizer_of

from edgewright.runtime.policy.images import BLACK
from edgewright.runtime.policy.numbers import robot_actions
from edgewright.runtime.policy.observation import Prepared, prepare

PI = ("pi05", "pi05_libero", "pi0", "pi0_lerobot")
#: Spec, golden, and what the names of its pipeline's results begin with.
WAYS = [(name, name, "") for name in PI] + [("pi05_openpi", "pi05", "openpi.")]


def scenarios(golden: str) -> Iterator[dict[str, Any]]:
    yield from golden_of(golden)[0]["scenarios"]


CASES = [
    (spec, golden, prefix, scenario["name"])
    for spec, golden, prefix in WAYS
    for scenario in scenarios(golden)
    if f"{scenario['name']}/{prefix}actions" in golden_of(golden)[1]
]


def observed(spec_name: str, golden: str, scenario: dict[str, Any], row: int) -> dict[str, Any]:
    tensors = golden_of(golden)[1]
    spec = spec_of(spec_name)
    slots = dict(zip(CAMERAS, spec.cameras, strict=True))
    images = {slots[c]: tensors[f"{scenario['name']}/image.{c}"][row] for c in scenario["cameras"]}
    return {"images": images, "state": tensors[f"{scenario['name']}/state"][row], "prompt": scenario["prompts"][row]}


@pytest.mark.parametrize(("spec_name", "golden", "prefix", "name"), CASES, ids=lambda v: str(v) or "-")
def test_pi(spec_name: str, golden: str, prefix: str, name: str) -> None:
    scenario = next(s for s in scenarios(golden) if s["name"] == name)
    tensors = {key.removeprefix(f"{name}/"): v for key, v in golden_of(golden)[1].items() if key.startswith(f"{name}/")}
    spec, statistics = spec_of(spec_name), statistics_of(spec_name)
    for row in range(len(scenario["prompts"])):
        observation = observed(spec_name, golden, scenario, row)
        found = prepare(spec, statistics, tokenizer_of(spec_name), observation)
        mask = tensors[f"{prefix}token_mask"][row]
        np.testing.assert_array_equal(found.token_ids, tensors[f"{prefix}tokens"][row][mask])
        notes = [note for note in found.notes if not note.startswith("no image of")]
        assert bool(notes) == (name == "truncated_prompt")
        check_state(found, tensors[f"{prefix}state_normalized"][row], spec.state_dim)
        views = seen_by_model(golden, spec_name, found)
        np.testing.assert_array_equal(views, tensors[f"{prefix}image_mask"][row])
        if f"{prefix}pixels" in tensors:
            pixels = tensors[f"{prefix}pixels"][row][views]
            check_images(spec.convention, found.images, pixels)
        actions = robot_actions(spec, statistics, tensors[f"{prefix}actions_normalized"][row], found.raw_state)
        np.testing.assert_allclose(actions, tensors[f"{prefix}actions"][row], rtol=1.2e-7, atol=1e-12)
        if f"{prefix}actions_absolute" in tensors:
            numbers = spec.action_dim
            relative = spec_of(spec_name, delta_mask=(True,) * (numbers - 1) + (False,))
            made = robot_actions(relative, statistics, tensors["actions_normalized"][row], found.raw_state)
            np.testing.assert_allclose(made, tensors["actions_absolute"][row], rtol=1.2e-7, atol=1e-7)


def seen_by_model(golden: str, spec_name: str, found: Prepared) -> np.ndarray:
    """The mask of the original: LeRobot puts the cameras that are missing last."""
    if spec_of(spec_name).convention == "openpi":
        return found.camera_mask
    return np.sort(found.camera_mask)[::-1]


def check_images(convention: str, images: np.ndarray, expected: np.ndarray) -> None:
    if convention == "lerobot":
        np.testing.assert_allclose(images, expected, rtol=0, atol=1e-6)
        return
    np.testing.assert_array_equal(images, expected)


def check_state(found: Prepared, expected: np.ndarray, numbers: int) -> None:
    np.testing.assert_allclose(found.state[:numbers], expected.astype(np.float32), rtol=1.2e-7, atol=1e-12)
    assert found.state.shape == (32,)
    assert not found.state[numbers:].any()


SMOLVLA = [
    name
    for name, scenario in golden_of("smolvla")[0]["scenarios"].items()
    if not set(scenario.get("overrides", {})) - {"resize_imgs_with_padding", "pad_language_to", "prefix_length"}
]


@pytest.mark.parametrize("name", SMOLVLA)
def test_smolvla(name: str) -> None:
    record, tensors = golden_of("smolvla")
    scenario = record["scenarios"][name]
    size = scenario.get("overrides", {}).get("resize_imgs_with_padding", [32, 32])
    spec, statistics = spec_of("smolvla", image_size=tuple(size[::-1])), statistics_of("smolvla")
    for row, prompt in enumerate(scenario["prompt"]):
        images = {key: tensors[f"input/{image}"] for key, image in scenario["images"][row].items()}
        observation = images | {"observation.state": tensors[f"{name}/state"][row], "task": prompt}
        found = prepare(spec, statistics, tokenizer_of("smolvla"), observation)
        mask = tensors[f"{name}/token_mask"][row]
        np.testing.assert_array_equal(found.token_ids, tensors[f"{name}/token_ids"][row][mask])
        assert [note.split(" ")[1] for note in found.notes if not note.startswith("no image of")] == ["prompt"] * (
            name in ("long_prompt", "empty_prompt")
        )
        check_state(found, tensors[f"{name}/normalized_state"][row], spec.state_dim)
        np.testing.assert_allclose(found.state, tensors[f"{name}/model_state"][row], rtol=1.2e-7, atol=0)
        for index in range(3 if f"{name}/image.0" in tensors else 0):
            expected = tensors[f"{name}/image.{index}"][row]
            if index < len(found.images):
                np.testing.assert_allclose(found.images[index], expected, rtol=0, atol=1e-6)
            else:
                assert (expected == BLACK).all()
        actions = robot_actions(spec, statistics, tensors[f"{name}/normalized_actions"][row], found.raw_state)
        np.testing.assert_allclose(actions, tensors[f"{name}/actions"][row], rtol=1.2e-7, atol=1e-12)
