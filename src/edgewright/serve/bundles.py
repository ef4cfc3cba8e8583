"""A policy bundle as a server needs it: the policy, what its clients are told, an observation to warm up with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewright.bundle import read_manifest
from edgewright.errors import BundleError
from edgewright.runtime.policy.policy import Policy
from edgewright.serve.protocol import Inferred

_WARM_UP_PROMPT = "pick up the object"
_GRAY = 127


class ServedBundle:
    """The policy of a bundle, for a server.

    Raises BundleError when the bundle holds no policy, and whatever loading it raises; `threads` is the number of
    cores to use.
    """

    def __init__(self, bundle: str | Path, *, threads: int | None = None) -> None:
        if read_manifest(Path(bundle)).model.get("policy") is None:
            raise BundleError(f"{bundle} holds no robot policy, and only policies are served: use `edgewright run`.")
        self.policy = Policy.load(bundle, threads=threads)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What a client needs to know of the policy."""
        return self.policy.metadata

    def infer(self, observation: Mapping[str, Any], /, *, committed: NDArray[Any] | None = None) -> Inferred:
        """Return the policy's chunk, as it is: what the limits say is kept by whoever moves the robot.

        `committed` [n, dim] are its first n actions, where the policy takes them.
        """
        if committed is None:
            return self.policy.infer(observation)
        return self.policy.infer(observation, committed=committed)

    def example(self) -> dict[str, Any]:
        """Return an observation that fits: gray images uint8 `[height, width, 3]`, a state of zeros, a prompt."""
        spec = self.policy.spec
        images = {camera: np.full((*spec.image_size, 3), _GRAY, np.uint8) for camera in spec.cameras}
        observation: dict[str, Any] = {"images": images, "prompt": _WARM_UP_PROMPT}
        if spec.state_dim:
            observation["state"] = np.zeros(spec.state_dim, np.float32)
        return observation
