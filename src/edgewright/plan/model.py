"""What can be planned: stages that tell what a run of them does, and what they keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewright.contract import StageContract
from edgewright.plan.memory import Activations
from edgewright.plan.work import Call, Work
from edgewright.runtime.policy.spec import PolicySpec

#: Bytes of the float types that platforms compute with.
FLOAT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Variant:
    """How a model could be kept instead: the place of its table, the bytes of a number in its cache, another recipe."""

    outside: bool = False
    cache_width: int | None = None
    recipe: str | None = None


#: The model as it is asked for.
AS_ASKED = Variant()


class Model(ABC):
    """A language model with the stage `llm`, or a policy with `vision`, `prefix` and `denoise`.

    `kind` is its type, `recipe` the name of the one that it is stored by, `spec` what a policy's runtime knows of it,
    None for a language model. `float_bytes` and `cache_width` are the bytes of an activation and of a number in the
    cache. `cut` is the most tokens that are fed at once, None where nothing limits them. `notes` are what a reader must
    know of the numbers.
    """

    path: Path
    kind: str
    recipe: str
    spec: PolicySpec | None
    float_bytes: int
    cache_width: int
    cut: int | None
    contracts: Mapping[str, StageContract]
    notes: tuple[str, ...] = ()

    @abstractmethod
    def count(self, stage: str, call: Call) -> Sequence[Work]:
        """Return the work of a run."""

    @abstractmethod
    def activations(self, stage: str, call: Call) -> Activations:
        """Return what is there at every node of a run."""

    @abstractmethod
    def weights(self, variant: Variant = AS_ASKED) -> int:
        """Return the bytes of all weights."""

    def variants(self) -> Iterator[tuple[str, Variant]]:
        """Yield ways to keep it in less memory, in words and as a variant, those that cost the least quality first."""
        yield from ()
