"""What a server needs of a policy; the runtime's `Policy`, a remote one and a test's stand-in all fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

#: The key of an observation under which a client sends committed actions; openpi's clients have none.
COMMITTED = "committed_actions"


class Inferred(Protocol):
    """An action chunk."""

    @property
    def actions(self) -> NDArray[np.float32]:
        """Actions float32 `[horizon, dim]`, in the robot's units."""

    @property
    def timings(self) -> Mapping[str, Any]:
        """Milliseconds by name: numbers, or lists of numbers."""


class Infers(Protocol):
    """A policy. A server calls it from one thread, one observation at a time."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What a client is told when it connects: plain values and arrays."""

    def infer(self, observation: Mapping[str, Any], /) -> Inferred:
        """Return the chunk of one observation; raises ObservationError for one that doesn't fit."""


class Continues(Infers, Protocol):
    """A policy whose metadata says `takes_committed`: its chunks can continue what the robot is sent already."""

    def infer(self, observation: Mapping[str, Any], /, *, committed: NDArray[Any] | None = None) -> Inferred:
        """Return a chunk that begins with `committed` `[n, dim]`; raises GenerationError for such as can't be used."""
