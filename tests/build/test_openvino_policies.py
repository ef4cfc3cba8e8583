"""Robot policies on OpenVINO: every kind, loops, recipes and prefix caches give what ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from edgewright.build.engines import engine_request
from edgewright.build.pipeline import Built, deploy
from edgewright.build.quantized import quantize_checkpoint
from edgewright.checkpoint.policy import PolicyOptions
from edgewright.errors import UnsupportedFormatError
from edgewright.quant.recipe import Data
from edgewright.quant.recipe_file import parse_recipe
from edgewright.runtime.policy import Policy
from edgewright.verify.policy_actions import synthetic
from policy_builds import deploy_policy, request_for, source_of
from policy_goldens import OPTIONS, policy_checkpoint
from quantizer_policy_cases import write_observations

FLOATS = "body: {format: float32}\nlm_head: {format: float32}\nembedding: {format: float32}\n"


def actions(folder: Path, count: int = 2) -> np.ndarray:
    """The normalized actions of a batch of seeded observations from seeded noise."""
    policy = Policy.load(folder, threads=1)
    seen = synthetic(policy.spec, policy.statistics, count)
    shape = (count, policy.spec.horizon, policy.spec.model_action_dim)
    noise = np.random.default_rng(3).standard_normal(shape, np.float32)
    return np.stack([chunk.normalized for chunk in policy.infer_batch(seen, noise)])


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A pi0 of float32 on OpenVINO."""
    return deploy_policy("pi0", tmp_path_factory.mktemp("exact") / "b", engines=engine_request("openvino"))


@pytest.mark.parametrize(
    ("case", "features"),
    [
        ("pi0", {}),
        ("pi05", {"loop": "graph"}),
        ("smolvla", {"loop": "graph", "cross-once": True}),
    ],
)
def test_the_same_actions(case: str, features: Mapping[str, bool | str], exact: Built, tmp_path: Path) -> None:
    asked = request_for(case, features)
    made = [deploy_policy(case, tmp_path / "a", policy=asked)]
    made.append(
        deploy_policy(case, tmp_path / "b", policy=asked, engines=engine_request("openvino")) if features else exact
    )
    assert {entry.runtime for entry in made[1].manifest.stages.values()} == {"openvino"}
    one, two = (actions(built.path) for built in made)
    assert np.abs(one - two).max() < 2e-5 * np.abs(one).max()


def test_rounded_inputs_are_rounded_in_groups(exact: Built, tmp_path: Path) -> None:
    built = deploy_policy("pi0", tmp_path / "b", "policy-int8", engines=engine_request("openvino"))
    assert {entry.settings["group"] for entry in built.manifest.stages.values()} == {128}
    assert {entry.settings["group"] for entry in exact.manifest.stages.values()} == {0}
    apart = np.abs(actions(built.path) - actions(exact.path)).max()
    assert 0 < apart < 0.1


def test_weights_of_eight_bits_alone_leave_inputs_as_they_are(tmp_path: Path) -> None:
    recipe = parse_recipe(FLOATS.replace("body: {format: float32}", "body: {format: int8, group: channel}"), "r.yaml")
    made = [deploy_policy("pi0", tmp_path / str(n), recipe, engines=engine_request(n)) for n in (None, "openvino")]
    assert {entry.settings["group"] for entry in made[1].manifest.stages.values()} == {0}
    one, two = (actions(built.path) for built in made)
    assert np.abs(one - two).max() < 2e-5 * np.abs(one).max()


CALIBRATED = {
    "static inputs and an int8 cache": "extends: w8a8\nkv: {format: int8}\n",
    "fp8 cache": FLOATS + "kv: {format: fp8, scope: head}\n",
}


@pytest.mark.parametrize("name", CALIBRATED)
def test_what_was_calibrated(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = Data(str(write_observations(tmp_path / "data", policy_checkpoint("pi05"), 4)))
    recipe, options = parse_recipe(CALIBRATED[name], "r.yaml"), PolicyOptions(**OPTIONS["pi05"])
    quantize_checkpoint(source_of("pi05"), tmp_path / "policy", recipe=recipe, data=data, policy=options)
    made = [
        deploy(tmp_path / "policy", tmp_path / str(n), recipe="stored", policy=request_for("pi05"), verify=False,
               engines=engine_request(n))
        for n in (None, "openvino")
    ]  # fmt: skip
    kept = {tensor.dtype for tensor in made[1].manifest.stages["prefix"].contract.outputs}
    assert kept == {"float8_e4m3fn" if name == "fp8 cache" else "int8"}
    assert {entry.settings["group"] for entry in made[1].manifest.stages.values()} == {0}
    one, two = (actions(built.path) for built in made)
    assert np.abs(one - two).max() < 5e-3 * np.abs(one).max()


def test_inputs_of_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"to int8 only, and .*layers\.0\..* rounds them to mxfp8"):
        deploy_policy("pi05", tmp_path / "b", "mxfp8", engines=engine_request("denoise=openvino"))
    assert not list(tmp_path.iterdir())
