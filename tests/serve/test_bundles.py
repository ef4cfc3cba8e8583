"""A bundle's policy for a server: what clients are told, the observation to warm up with, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_cases import Chunk

from edgewright.bundle import Manifest, read_manifest, write_manifest
from edgewright.errors import BundleError, GenerationError
from edgewright.runtime.policy.control import Control
from edgewright.runtime.policy.policy import metadata_of, policy_spec
from edgewright.runtime.policy.spec import Limits, PolicySpec
from edgewright.serve import PolicyClient, serving
from edgewright.serve.bundles import ServedBundle
from edgewright.serve.wire import decode_observation, encode
from policy_specs import small_spec

SPEC = small_spec(state_dim=7, action_dim=5, limits=Limits(maximum=(0.5,) * 5, fallback="stop")).to_json()


def bundle(folder: Path, **model: Any) -> Path:
    """A bundle that is nothing but a manifest."""
    manifest = Manifest(model=model, source={}, recipe={}, stages={}, versions={}, verdict={"status": "not run"})
    folder.mkdir(exist_ok=True)
    write_manifest(folder, manifest)
    return folder


class Recorder:
    """Stands for the runtime's Policy: remembers how it was loaded and what it was asked."""

    loaded: tuple[Any, Any]

    def __init__(self, spec: PolicySpec) -> None:
        self.asked: list[Any] = []
        self.spec = spec
        self.metadata = metadata_of(spec, takes_committed=True)

    @classmethod
    def load(cls, path: Any, threads: int | None = None) -> Recorder:
        cls.loaded = (path, threads)
        return cls(policy_spec(read_manifest(path)))

    def infer(self, observation: Any, noise: Any = None, steps: Any = None, committed: Any = None) -> Chunk:
        self.asked.append(observation)
        return Chunk(np.full((10, 5), observation["state"].sum() + 1, np.float32))


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewright.serve.bundles.Policy", Recorder)


def test_the_policy_is_loaded_and_asked(tmp_path: Path) -> None:
    path = bundle(tmp_path / "b", policy=SPEC)
    served = ServedBundle(path, threads=3)
    assert Recorder.loaded == (path, 3)
    assert served.infer({"state": np.arange(7.0)}).actions[9, 4] == 22


def test_clients_are_told_what_to_send(tmp_path: Path) -> None:
    with serving(ServedBundle(bundle(tmp_path, policy=SPEC))) as server, PolicyClient(port=server.port) as client:
        told = client.metadata
    names = ("kind", "convention", "cameras", "required_cameras", "state_dim", "action_dim", "horizon", "steps_to_run")
    assert told == {name: SPEC[name] for name in (*names, "steps", "limits")} | {"takes_committed": True}
    assert told["limits"] == Limits(maximum=(0.5,) * 5, fallback="stop").to_json()
    control = Control.of(told, 10.0)
    assert (control.guard.limits.fallback, control.buffer.chunking.horizon) == ("stop", 10)
    Control.of(told, 10.0, mode="committed")
    with pytest.raises(GenerationError, match="takes no committed actions here"):
        Control.of({**told, "takes_committed": False}, 10.0, mode="committed")


def test_the_warm_up_observation_fits(tmp_path: Path) -> None:
    example = ServedBundle(bundle(tmp_path, policy=SPEC)).example()
    decode_observation(encode(example))
    assert list(example["images"]) == SPEC["cameras"]
    assert all(image.shape == (28, 42, 3) and image.dtype == np.uint8 for image in example["images"].values())
    assert example["state"].shape == (7,)
    assert example["prompt"]
    without = ServedBundle(bundle(tmp_path, policy={**SPEC, "state_dim": 0})).example()
    assert "state" not in without


def test_a_bundle_without_a_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="holds no robot policy"):
        ServedBundle(bundle(tmp_path, family="llama"))


def test_a_damaged_description_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="horizon"):
        ServedBundle(bundle(tmp_path, policy={**SPEC, "horizon": "ten"}))
