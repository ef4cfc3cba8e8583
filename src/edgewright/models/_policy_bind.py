"""Gives the parameters of a policy's network their tensors, all mismatches listed at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.layouts.quantization import Quantization
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.checkpoint.views import DerivedTensor, reshaped
from edgewright.errors import ConfigError, TensorMismatchError
from edgewright.models._bind import attach
from edgewright.nn import Linear, Module, Parameter
from edgewright.nn.stored_part import StoredPart

#: How many problems an error lists.
_SHOWN = 20


class SomeColumns(DerivedTensor):
    """Columns of a stored matrix."""

    def __init__(self, source: StoredTensor, columns: slice) -> None:
        self._columns = columns
        count = len(range(source.shape[1])[columns])
        super().__init__(source, (source.shape[0], count), "some columns")

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        self.check_range(start, stop)
        return np.ascontiguousarray(self._source.rows(start, stop)[:, self._columns])


class SomeRows(DerivedTensor):
    """Rows of a small stored matrix in any order, some more than once."""

    def __init__(self, source: StoredTensor, picked: tuple[int, ...]) -> None:
        self._picked = np.array(picked, dtype=np.intp)
        super().__init__(source, (len(picked), *source.shape[1:]), "some rows")

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        self.check_range(start, stop)
        return np.ascontiguousarray(self._source.read()[self._picked[start:stop]])


def bind(network: Module, tensors: Mapping[str, Any], quantization: Quantization | None = None) -> None:
    """Give every parameter of the tree its tensor; those of our own quantized checkpoints have names and shapes of
    the parameters themselves.

    Raises TensorMismatchError that lists every tensor that is missing, not used, of another shape or not of floats;
    ConfigError where quantizing gave a bias to what is no linear.
    """
    own = quantization is not None and quantization.canonical
    if quantization is not None:
        _add_biases(network, quantization.biases)
    wanted: dict[str, list[Parameter]] = {}
    for parameter in network.parameters():
        name = parameter.name if own else getattr(parameter, "stored_name", parameter.name)
        wanted.setdefault(name, []).append(parameter)
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    problems += [f"{name} is not used by the policy" for name in tensors if name not in wanted]
    for name, parameters in wanted.items():
        if name in tensors:
            bind = attach if own else functools.partial(_bound, name)
            problems += dict.fromkeys(p for parameter in parameters for p in bind(parameter, tensors[name]))
    if problems:
        more = len(problems) - _SHOWN
        shown = "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise TensorMismatchError(f"The checkpoint's tensors don't fit its config: {shown}.")


def _add_biases(network: Module, paths: Sequence[str]) -> None:
    """Give linears the biases that quantizing added."""
    linears = {module.path: module for module in network.modules() if isinstance(module, Linear)}
    for path in paths:
        if path not in linears:
            raise ConfigError(f"The quantized checkpoint has a bias for {path}, which is no linear of the policy.")
        linears[path].bias = Parameter(linears[path].weight.shape[0])
    network.assign_names()


def _bound(name: str, parameter: Parameter, tensor: StoredTensor) -> list[str]:
    """Attach a tensor to a parameter, seen the way the parameter wants it; returns what is wrong with it."""
    if not isinstance(parameter, StoredPart):
        return attach(parameter, tensor)
    if tuple(tensor.shape) != parameter.stored_shape:
        return [f"{name} has the shape {list(tensor.shape)} where {list(parameter.stored_shape)} is needed"]
    if "float" not in tensor.dtype:
        return [f"{name} is stored as {tensor.dtype} where floating-point numbers are needed"]
    if parameter.columns is not None:
        return attach(parameter, SomeColumns(tensor, parameter.columns))
    if parameter.rows is not None:
        return attach(parameter, SomeRows(tensor, parameter.rows))
    return attach(parameter, reshaped(tensor, parameter.shape))
