"""Each step of the input pipeline against what openpi and LeRobot did with the same values."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from policy_inputs import GOLDENS, spec_of, tokenizer_of
from safetensors.numpy import load_file

from edgewright.errors import BundleError, ObservationError
from edgewright.runtime.policy.images import resize
from edgewright.runtime.policy.numbers import absolute, discretize, normalize, pad, unnormalize
from edgewright.runtime.policy.prompt import full_text, token_ids

FOLDER = GOLDENS / "inputs"
RECORD: dict[str, Any] = json.loads((FOLDER / "inputs.json").read_text())


@cache
def tensors() -> dict[str, np.ndarray]:
    return load_file(FOLDER / "inputs.safetensors")


def picture(case: dict[str, Any]) -> np.ndarray:
    """The input of an image case, stored or from its formula."""
    if "tensor" in case["input"]:
        image = tensors()[case["input"]["tensor"]]
    else:
        y, x, c = np.meshgrid(*(np.arange(n) for n in (*case["size"], 3)), indexing="ij")
        image = ((3 * y * y + 5 * x * x + 7 * x * y + 8300 * c) // 512 % 256).astype(np.uint8)
    assert hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest() == case["input"]["sha256"]
    return image


@pytest.mark.parametrize("case", RECORD["images"], ids=lambda case: case["name"])
def test_images(case: dict[str, Any]) -> None:
    image, step = picture(case), case["stride"]
    ways = {"pil_uint8": "pi05_openpi", "lerobot_center": "pi05", "lerobot_left_top": "smolvla"}
    for way, name in ways.items():
        spec = spec_of(name, image_size=tuple(case["target"]))
        if way in case["errors"]:
            with pytest.raises(ObservationError, match="no pixel left"):
                resize(image, spec)
            continue
        found, expected = resize(image, spec)[:, ::step, ::step], tensors()[case["results"][way]]
        if way != "pil_uint8":
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
            continue
        exact = expected.transpose(2, 0, 1).astype(np.float32) / np.float32(255.0) * np.float32(2.0) - np.float32(1.0)
        np.testing.assert_array_equal(found, exact)


def test_float_images_become_grey_levels() -> None:
    for case in RECORD["float_images"]:
        values, expected = tensors()[case["values"]], tensors()[case["result"]]
        inside = (values >= 0) & (values <= 1)
        assert inside.sum() > 200
        image = np.repeat(values[inside][None, :, None], 3, axis=2)
        spec = spec_of("pi05_openpi", image_size=image.shape[:2])
        levels = np.rint((resize(image, spec)[0, 0] + 1) * 127.5)
        np.testing.assert_array_equal(levels, expected[inside])


PROMPTS = {"openpi": ("pi0", "pi05_openpi"), "lerobot_pi0": ("pi0_lerobot",) * 2, "smolvla": ("smolvla",) * 2}
PROMPTS["lerobot_pi05"] = ("pi05", "pi05")


@pytest.mark.parametrize("index", range(len(RECORD["prompts"])))
def test_prompts(index: int) -> None:
    case = RECORD["prompts"][index]
    state = None if case["state"] is None else np.array([float(v) for v in RECORD["states"][case["state"]]])
    ways = PROMPTS.keys() & case.keys()
    assert ways
    for way in ways:
        name = PROMPTS[way][state is not None]
        wanted = case[way]
        spec = spec_of(name, max_tokens=case["max_tokens"])
        made = full_text(spec, case["text"], state)
        assert made == wanted["texts"][0]
        ids, _ = token_ids(spec, tokenizer_of(name), case["text"], state)
        assert ids.tolist() == wanted["ids"][: wanted["valid"]]


def test_bins() -> None:
    for case in RECORD["bins"].values():
        np.testing.assert_array_equal(discretize(tensors()[case["values"]]), tensors()[case["codes"]])


#: Without the way that no policy uses, and without one statistic for all numbers, which is refused here.
NORMALIZE = [c for c in RECORD["normalize"] if c["mode"] != "quantile10" and (c["statistics"] != 1 or c["inverse"])]
NORMALIZE = [c for c in NORMALIZE if c["statistics"] != 1 or c["project"] == "openpi"]


@pytest.mark.parametrize("case", NORMALIZE, ids=lambda c: f"{c['project']}-{c['mode']}-{c['statistics']}-{c['values']}")
def test_normalize(case: dict[str, Any]) -> None:
    names = ("mean", "std", "q01", "q99", "min", "max")
    statistics = {name: tensors()[f"statistics/{case['statistics']}/{name}"] for name in names}
    function = unnormalize if case["inverse"] else normalize
    values = tensors()[case["values"]]
    if case["error"]:
        refused: Any
        try:
            refused = function(values, statistics, case["mode"], case["project"])
        except BundleError:
            return
        assert case["inverse"]  # more statistics than actions: openpi stops, here they are cut
        assert refused.shape == values.shape
        return
    found = function(values, statistics, case["mode"], case["project"])
    expected = tensors()[case["result"]]
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("case", RECORD["actions"]["masks"], ids=lambda case: str(case["make_bool_mask"]))
def test_absolute_actions(case: dict[str, Any]) -> None:
    actions, state = (tensors()[RECORD["actions"][name]] for name in ("actions", "state"))
    for project in ("openpi", "lerobot"):
        np.testing.assert_array_equal(absolute(actions, state, case["mask"]), tensors()[case[f"{project}_absolute"]])
        np.testing.assert_array_equal(absolute(actions, -state, case["mask"]), tensors()[case[f"{project}_delta"]])


def test_padding_and_cutting() -> None:
    outputs = RECORD["actions"]["outputs"]
    state = tensors()[RECORD["actions"]["state"]]
    np.testing.assert_array_equal(pad(state, 32), tensors()[outputs["padded_state"]])
    model = tensors()[outputs["model"]]
    np.testing.assert_array_equal(model[:, :7], tensors()[outputs["libero"]])
