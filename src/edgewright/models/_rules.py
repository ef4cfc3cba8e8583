"""How a family's stored tensors become the parameters of its network: renamed, split, stacked, transposed, dropped.

A rule looks at names with a regular expression that must match the whole name. Rules run in order, each over all
tensors that are there at that point; one that matches nothing is fine, since a family's files come in several
spellings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from edgewright.checkpoint.views import Columns, EveryNth, Flattened, RowsView, Span, reshaped
from edgewright.errors import TensorMismatchError

Tensors = dict[str, Any]
#: A part's number as files spell it.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")


class Rule(Protocol):
    """One step; returns a note for the manifest when it did something worth telling."""

    def apply(self, tensors: Tensors) -> str | None: ...


@dataclass(frozen=True)
class Rename:
    """`to` is a template of the groups (`\\1`)."""

    pattern: str
    to: str

    def apply(self, tensors: Tensors) -> str | None:
        for name, match in _matches(self.pattern, tensors):
            _put(tensors, match.expand(self.to), tensors.pop(name))
        return None


@dataclass(frozen=True)
class Split:
    """Cut the leading axis: each template of `parts` gets its runs of rows, which together must be all rows."""

    pattern: str
    parts: Mapping[str, Sequence[Span]]

    def apply(self, tensors: Tensors) -> str | None:
        rows = sum(stop - start for spans in self.parts.values() for start, stop in spans)
        for name, match in _matches(self.pattern, tensors):
            tensor = tensors.pop(name)
            if not tensor.shape or tensor.shape[0] != rows:
                raise TensorMismatchError(
                    f"The checkpoint's tensors don't fit its config: {name} has the shape {list(tensor.shape)} where "
                    f"{rows} rows are needed."
                )
            for to, spans in self.parts.items():
                new = match.expand(to)
                _put(tensors, new, RowsView(new, [(tensor, span) for span in spans]))
        return None


@dataclass(frozen=True)
class Deal:
    """Deal rows in turn: template i of `parts` gets the rows i, i + n, ... for n parts."""

    pattern: str
    parts: Sequence[str]

    def apply(self, tensors: Tensors) -> str | None:
        for name, match in _matches(self.pattern, tensors):
            tensor = tensors.pop(name)
            for first, to in enumerate(self.parts):
                new = match.expand(to)
                _put(tensors, new, EveryNth(new, tensor, first, len(self.parts)))
        return None


@dataclass(frozen=True)
class Transpose:
    """Turn matrices stored as `[in, out]`, alone or stacked `[n, in, out]`, into rows `[out, in]` or `[n * out, in]`.

    Each template of `parts` gets the columns its slice picks; biases `[n, out]` are picked from and flattened. A vector
    stays as it is.
    """

    pattern: str
    parts: Mapping[str, slice]
    stacked: bool = False

    def apply(self, tensors: Tensors) -> str | None:
        for name, match in _matches(self.pattern, tensors):
            rank = len(tensors[name].shape)
            if rank == 1:
                continue
            tensor = tensors.pop(name)
            view = Flattened if self.stacked and rank == 2 else Columns
            for to, picked in self.parts.items():
                _put(tensors, match.expand(to), view(tensor, picked))
        return None


@dataclass(frozen=True)
class Reshape:
    """Give another shape, made from the stored one, over the same elements."""

    pattern: str
    shape: Callable[[tuple[int, ...]], tuple[int, ...]]

    def apply(self, tensors: Tensors) -> str | None:
        for name, _ in _matches(self.pattern, tensors):
            shape = self.shape(tuple(tensors[name].shape))
            if shape != tuple(tensors[name].shape):
                tensors[name] = reshaped(tensors[name], shape)
        return None


@dataclass(frozen=True)
class Stack:
    """Put `count` numbered tensors behind each other: the pattern's group `i` is the number, `to` has no such group."""

    pattern: str
    to: str
    count: int

    def apply(self, tensors: Tensors) -> str | None:
        found: dict[str, dict[int, str]] = {}
        for name, match in _matches(self.pattern, tensors):
            if _NUMBER.fullmatch(match["i"]):  # anything else is no part's number, and left over
                found.setdefault(match.expand(self.to), {})[int(match["i"])] = name
        for new, names in found.items():
            missing = next((i for i in range(self.count) if i not in names), None)
            if missing is not None or len(names) > self.count:
                raise TensorMismatchError(
                    f"The checkpoint's tensors don't fit its config: {new} has {len(names)} parts where {self.count} "
                    f"are needed" + ("." if missing is None else f"; number {missing} is missing.")
                )
            parts = [tensors.pop(names[i]) for i in range(self.count)]
            if len({(part.dtype, tuple(part.shape[1:])) for part in parts}) != 1:
                raise TensorMismatchError(f"The parts of {new} have different shapes or dtypes.")
            # The parts are experts, whose inputs the graph can't put in another order.
            _put(tensors, new, RowsView(new, [(part, (0, part.shape[0])) for part in parts], in_place=True))
        return None


@dataclass(frozen=True)
class Drop:
    """Leave out tensors that play no part, with the reason."""

    pattern: str
    reason: str

    def apply(self, tensors: Tensors) -> str | None:
        names = [name for name, _ in _matches(self.pattern, tensors)]
        for name in names:
            del tensors[name]
        return f"{len(names)} tensors left out: {self.reason}" if names else None


def qkv_spans(heads: int, kv_heads: int, head_dim: int) -> dict[str, list[Span]]:
    """Return the row runs of q, k and v in a projection that has all queries first, then keys, then values."""
    q, kv = heads * head_dim, kv_heads * head_dim
    return {"q_proj": [(0, q)], "k_proj": [(q, q + kv)], "v_proj": [(q + kv, q + 2 * kv)]}


def grouped_spans(groups: int, sizes: Mapping[str, int]) -> dict[str, list[Span]]:
    """Return the row runs of parts that alternate in `groups` groups, each with `sizes` rows of each part in turn."""
    stride = sum(sizes.values())
    result: dict[str, list[Span]] = {}
    offset = 0
    for name, size in sizes.items():
        result[name] = [(g * stride + offset, g * stride + offset + size) for g in range(groups)]
        offset += size
    return result


def split(pattern: str, spans: Mapping[str, Sequence[Span]], to: str = r"\1{part}\2") -> Split:
    """Return a Split whose templates are `to` with `{part}` replaced by the names of `spans`."""
    return Split(pattern, {to.replace("{part}", name): runs for name, runs in spans.items()})


def _matches(pattern: str, tensors: Tensors) -> list[tuple[str, re.Match[str]]]:
    compiled = re.compile(pattern)
    return [(name, match) for name in tensors if (match := compiled.fullmatch(name))]


def _put(tensors: Tensors, name: str, tensor: Any) -> None:
    if name in tensors:
        raise TensorMismatchError(f"The checkpoint holds {name} twice, once under another spelling.")
    tensors[name] = tensor
