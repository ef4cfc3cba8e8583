"""The tensors of a quantized checkpoint by module, while a reader takes them: all must be taken or be plain weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from edgewright.checkpoint.layouts.names import module_class, surely_linear, without_numbers
from edgewright.checkpoint.layouts.quantization import Leftovers
from edgewright.checkpoint.layouts.weights import FLOATS, need_shape, scalar
from edgewright.checkpoint.tensor import FLOATING, StoredTensor
from edgewright.errors import CheckpointError
from edgewright.formats import ActivationFormat, Array, LinearInput

#: The significands an E4M3 scale may have.
_SIGNIFICANDS = np.arange(8, 16, dtype=np.float32) / np.float32(8)


class Modules:
    """Takes tensors by name; `result` collects what they become. `suffixes` are those that only quantizing makes."""

    def __init__(self, tensors: Mapping[str, StoredTensor], layout: str, suffixes: tuple[str, ...]) -> None:
        self.layout = layout
        self.result: dict[str, StoredTensor] = {}
        self._left = Leftovers(tensors, layout)
        self._suffixes = suffixes
        self._dynamic: dict[ActivationFormat, LinearInput] = {}

    def quantized(self, *suffixes: str) -> list[str]:
        """Return the modules that have a tensor of one of the suffixes, in file order."""
        found = (name.rpartition(".") for name in self._left.tensors)
        return list(dict.fromkeys(module for module, _, last in found if last in suffixes))

    def named(self, suffix: str) -> list[str]:
        """Return the tensors whose names end in `.suffix`."""
        return [name for name in self._left.tensors if name.endswith(f".{suffix}")]

    def take(self, name: str, dtype: str | tuple[str, ...]) -> StoredTensor:
        """Remove and return a tensor that must be there."""
        return self._left.take(name, dtype=dtype)

    def optional(self, name: str, dtype: str | tuple[str, ...]) -> StoredTensor | None:
        """Remove and return a tensor of a dtype, or None."""
        return self._left.take(name, dtype=dtype) if name in self._left.tensors else None

    def rename(self, name: str, to: str) -> None:
        """Give a tensor another name."""
        if to in self._left.tensors:
            raise CheckpointError(f"The {self.layout} checkpoint holds both {name} and {to}, which mean the same.")
        self._left.tensors[to] = self._left.tensors.pop(name)

    def need_zeros(self, name: str) -> None:
        """Take a tensor of zero points that a symmetric scheme has no use for; raises CheckpointError unless all 0."""
        tensor = self._left.optional(name)
        if tensor is not None and np.any(tensor.read()):
            raise CheckpointError(
                f"The config of the {self.layout} checkpoint has no zero points, but {name} holds some that aren't 0."
            )

    def dynamic(self, activation: ActivationFormat) -> LinearInput:
        """Return the input of a dynamic format; one value for all that have it."""
        return self._dynamic.setdefault(activation, LinearInput(activation=activation))

    def need_no_plain(self, wanted: Callable[[str], bool], by_name: Callable[[str], bool]) -> None:
        """Raise CheckpointError for a plain weight that the config has quantized.

        A class counts only for modules that are linears by their names, or whose like in other layers is quantized:
        other matrices (a router's, say) may belong to no linear at all.
        """
        kinds = {without_numbers(name.removesuffix(".weight")) for name in self.result}
        for name, tensor in self._left.tensors.items():
            module, _, last = name.rpartition(".")
            if last != "weight" or len(tensor.shape) != 2:
                continue
            likely = module_class(module) == "Linear" and surely_linear(module)
            if (likely or without_numbers(module) in kinds or by_name(module)) and wanted(module):
                raise CheckpointError(
                    f"The config of the {self.layout} checkpoint says that {module} is quantized, but the file holds "
                    f"plain {tensor.dtype} numbers and no scale."
                )

    def finish(self) -> None:
        """Pass plain tensors on. Raises CheckpointError for one that belongs to a quantized module and wasn't taken."""
        for name, tensor in self._left.tensors.items():
            plain = tensor.dtype in FLOATING and "float8" not in tensor.dtype
            if name.rpartition(".")[2] in self._suffixes or (name.endswith(".weight") and not plain):
                raise CheckpointError(
                    f"The tensor {name} ({tensor.dtype}) of the {self.layout} checkpoint belongs to nothing that its "
                    "config says is quantized: take another copy."
                )
            if name in self.result:
                raise CheckpointError(f"The {self.layout} checkpoint holds {name} both plain and quantized.")
        self.result |= self._left.tensors


def divided_by(scale: Array) -> tuple[Array, str | None]:
    """Return the factor of a scale float32 `[1]` that divides, with a note where not every product is the same.

    Block scales have 4 significant bits: the quotient and the product agree for all of them when they do for the eight
    significands.
    """
    with np.errstate(over="ignore"):
        factor = (np.float32(1) / scale).astype(np.float32)
    if not (np.isfinite(factor).all() and factor[0] >= np.finfo(np.float32).tiny):
        raise CheckpointError(f"The global scale {float(scale[0]):g} is too small or too large to divide by.")
    exact = np.array_equal(_SIGNIFICANDS / scale, _SIGNIFICANDS * factor)
    return factor, None if exact else "a dividing global scale became a factor, values differ by at most 1.2e-7 of each"


def needs_untying(result: Mapping[str, StoredTensor]) -> bool:
    """Tell whether the head has codes of its own beside an embedding table."""
    heads = [t for name, t in result.items() if name == "lm_head.weight" or name.endswith(".lm_head.weight")]
    tables = [name for name in result if module_class(name.removesuffix(".weight")) == "Embedding"]
    return bool(tables) and any(tensor.encoding is not None for tensor in heads)


def cache_scales(modules: Modules, key: str, value: str, *, per_head: bool = False) -> dict[str, tuple[Array, Array]]:
    """Take the scales of the cache: `X.key` and `X.value` by module X. Raises CheckpointError where one is missing."""
    found = {}
    for name in modules.named(key):
        attention = name.removesuffix(f".{key}")
        pair = modules.take(name, FLOATS), modules.take(f"{attention}.{value}", FLOATS)
        found[attention] = tuple(_heads(tensor) if per_head else scalar(tensor) for tensor in pair)
    if not found:
        raise CheckpointError(
            f"The config of the {modules.layout} checkpoint rounds the cache, but there is no scale for it."
        )
    return found  # type: ignore[return-value]


def _heads(tensor: StoredTensor) -> Array:
    values: Array = np.array(tensor.read(), np.float32).reshape(-1)
    need_shape(tensor, (len(values),), (len(values), 1), (len(values), 1, 1), ())
    return values.reshape(-1)
