"""What a reader of a quantized layout finds out beside the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgewright.checkpoint.tensor import StoredTensor
from edgewright.errors import CheckpointError


@dataclass(frozen=True)
class Quantization:
    """How a checkpoint was quantized.

    `method` names tool and format for the manifest. `canonical` says that tensors have the names of our networks'
    parameters, so that no rule of the family applies. `kv_dtype` and `kv_scales` (key and value scale, float32 `[1]` or
    `[kv_heads]`, by attention module) are there where the cache was calibrated. `untied` says that the head has codes
    of its own although the config ties it, `biases` names linears that got one. `notes` goes into the manifest.
    """

    method: str
    canonical: bool = False
    kv_dtype: str | None = None
    kv_scales: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    untied: bool = False
    biases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)


#: Reads a layout: (the quantization part of the config, all tensors by stored name) to (tensors by the names plain
#: weights would have, what else was found). Raises CheckpointError where config and tensors disagree.
Reader = Callable[[Mapping[str, Any], Mapping[str, StoredTensor]], tuple[dict[str, StoredTensor], Quantization]]


class Leftovers:
    """The tensors of a checkpoint while a reader takes them: every one must be taken or passed through."""

    def __init__(self, tensors: Mapping[str, StoredTensor], layout: str) -> None:
        self.tensors = dict(tensors)
        self._layout = layout

    def take(self, name: str, *, dtype: str | tuple[str, ...] | None = None) -> StoredTensor:
        """Remove and return a tensor that must be there, of (one of) the given dtypes."""
        tensor = self.tensors.pop(name, None)
        if tensor is None:
            raise CheckpointError(f"The {self._layout} checkpoint has no tensor {name}, which its config calls for.")
        allowed = (dtype,) if isinstance(dtype, str) else dtype
        if allowed is not None and tensor.dtype not in allowed:
            raise CheckpointError(
                f"The tensor {name} of the {self._layout} checkpoint is stored as {tensor.dtype} where "
                f"{' or '.join(allowed)} is needed: its config and its tensors disagree."
            )
        return tensor

    def optional(self, name: str) -> StoredTensor | None:
        """Remove and return a tensor, or None."""
        return self.tensors.pop(name, None)
