"""A policy bundle as a server needs it: the policy, what its clients are told, an observation to warm up with."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bundle import read_manifest
from edgewright.errors import BundleError, HostError
from edgewright.runtime.policy.spec import PolicySpec
from edgewright.serve.protocol import Inferred

_POLICIES = "edgewright.runtime.policy.policy"
#: What of a policy's spec tells a client what to send and what it gets.
_TOLD = ("kind", "convention", "cameras", "required_cameras", "state_dim", "action_dim", "horizon", "steps_to_run")
_WARM_UP_PROMPT = "pick up the object"
_GRAY = 127


class ServedBundle:
    """The policy of a bundle, for a server.

    Raises BundleError when the bundle holds no policy, and whatever loading it raises; `threads` is the number of
    cores to use.
    """

    def __init__(self, bundle: str | Path, *, threads: int | None = None) -> None:
        described = read_manifest(Path(bundle)).model.get("policy")
        if described is None:
            raise BundleError(f"{bundle} holds no robot policy, and only policies are served: use `edgewright run`.")
        self.spec = PolicySpec.from_json(described)
        self._policy = _load(bundle, threads)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What a client needs to know of the policy."""
        values = self.spec.to_json()
        return {name: values[name] for name in _TOLD}

    def infer(self, observation: Mapping[str, Any], /) -> Inferred:
        """Return the policy's chunk."""
        chunk: Inferred = self._policy.infer(observation)
        return chunk

    def example(self) -> dict[str, Any]:
        """Return an observation that fits: gray images uint8 `[height, width, 3]`, a state of zeros, a prompt."""
        images = {camera: np.full((*self.spec.image_size, 3), _GRAY, np.uint8) for camera in self.spec.cameras}
        observation: dict[str, Any] = {"images": images, "prompt": _WARM_UP_PROMPT}
        if self.spec.state_dim:
            observation["state"] = np.zeros(self.spec.state_dim, np.float32)
        return observation


def _load(bundle: str | Path, threads: int | None) -> Any:
    try:
        module = importlib.import_module(_POLICIES)
    except ModuleNotFoundError as error:
        if error.name != _POLICIES:
            raise
        raise HostError("This installation has no runtime for robot policies: update edgewright.") from None
    return module.Policy.load(bundle, threads=threads)
