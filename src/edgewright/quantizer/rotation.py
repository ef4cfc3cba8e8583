"""Hadamard rotations folded into weights: the model computes the same, its weights and inputs have fewer outliers.

"values": the values of every attention head are turned, and the projection that reads them turns back. "residual": the
residual stream is turned as well; norm weights move into the linears that read it, a tied head gets a table of its own.
Source: Ashkboos et al. 2024 (QuaRot), section 4; a width that is no power of two is turned in blocks of the largest
power of two that divides it.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from edgewright.errors import RecipeError
from edgewright.formats import Array
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import module_of
from edgewright.quantizer.turned import Ones, Turned, hadamard_size

_WRITERS = {"Linear": (1, 2), "Experts": (4, 7)}
_READERS = {"Linear": (1,), "Experts": (2, 3)}


def rotate(stage: Stage, kind: str) -> None:
    """Rotate a semantic float stage in place; `kind` is "values" or "residual".

    Raises RecipeError where the graph doesn't allow it, naming the module.
    """
    turned = sum(_turn_values(stage, node) for node in list(stage.graph) if _is(node, "Attention"))
    if kind == "residual":
        _Residual(stage).turn()
    elif not turned:
        raise RecipeError(
            "The rotation of values fits no attention layer of this model: between its value projection and its output "
            "projection lies more than attention. Leave it out."
        )


def _is(node: ir.Node | None, *types: str) -> bool:
    return node is not None and node.domain == EW and node.op_type in types


def _turn_values(stage: Stage, attention: ir.Node) -> bool:
    """Turn the values of one attention layer; tells whether it could be done."""
    value = attention.inputs[2]
    maker = value.producer() if value is not None else None
    if value is None or maker is None or not _is(maker, "Linear") or len(value.uses()) != 1 or not _own(maker, (1, 2)):
        return False
    if any(use.node.domain == EW for out in attention.outputs[1:] for use in out.uses()):
        return False  # another layer reads this cache
    readers = list(_readers(attention.outputs[0]))
    if not readers or any(not _is(node, "Linear") or not _own(node, (1,)) for node in readers):
        return False
    size = hadamard_size(attention.attributes["value_dim"].value)
    for place in (1, 2):
        _change(stage, maker, place, rows=size)
    for node in readers:
        _change(stage, node, 1, columns=size)
    return True


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that read a value, through selections of positions."""
    for use in value.uses():
        node = use.node
        if node.op_type == "Gather" and node.domain == "" and node.attributes["axis"].value == 1:
            yield from _readers(node.outputs[0])
        else:
            yield node


def _own(node: ir.Node, places: tuple[int, ...]) -> bool:
    """Tell whether no other node reads a node's parameters."""
    values = [node.inputs[place] for place in places if place < len(node.inputs)]
    return all(value is None or (value.is_initializer() and len(value.uses()) == 1) for value in values)


def _change(
    stage: Stage,
    node: ir.Node,
    place: int,
    *,
    rows: int | None = None,
    columns: int | None = None,
    by: Array | None = None,
) -> None:
    """Turn a parameter of a node, if it has it: its rows, its columns, its columns multiplied by `by` first."""
    value = node.inputs[place] if place < len(node.inputs) else None
    if value is not None:
        weight = stage.weights[str(value.name)]
        stage.add_weight(Turned(weight, rows=rows, columns=columns, by=by))


class _Residual:
    """The residual stream: who writes it and who reads it, followed through the graph."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._stream: set[int] = set()
        self._written: set[int] = set()
        self._read: set[int] = set()
        self._size = 0

    def turn(self) -> None:
        """Turn it."""
        tables = [node for node in self._stage.graph if _is(node, "Embedding")]
        if len(tables) != 1:
            raise RecipeError("The residual stream can't be rotated: the model has several tables. Leave it out.")
        table = self._stage.weights[str(tables[0].inputs[1].name)]  # type: ignore[union-attr]
        self._size = hadamard_size(table.shape[1])
        self._untie(tables[0])
        self._follow(tables[0].outputs[0])
        self._stage.add_weight(Turned(table, columns=self._size))

    def _untie(self, embedding: ir.Node) -> None:
        """Give a head that reads the table a weight of its own: it is turned together with the last norm's weight."""
        value = embedding.inputs[1]
        assert value is not None
        for use in list(value.uses()):
            if use.node is not embedding:
                own = Turned(self._stage.weights[str(value.name)], name=f"{module_of(use.node)}.weight")
                use.node.replace_input_with(use.idx, self._stage.float_value(own))

    def _refuse(self, node: ir.Node, what: str) -> RecipeError:
        name = module_of(node) or node.name
        return RecipeError(f"The residual stream can't be rotated: {name} {what}. Use the rotation 'values', or none.")

    def _follow(self, value: ir.Value) -> None:
        """Take a value as part of the stream: everything that reads it must allow for the rotation."""
        if id(value) in self._stream:
            return
        self._stream.add(id(value))
        for use in value.uses():
            node = use.node
            if node.domain == "" and node.op_type in ("Add", "Mul", "Gather"):
                self._pass(node, value)
            elif _is(node, "RMSNorm") and node.attributes.get("group") is None:
                self._norm(node)
            elif _is(node, *_READERS):
                self._reads(node, None)
            else:
                raise self._refuse(node, f"({node.op_type}) reads it in another way than through a norm")

    def _pass(self, node: ir.Node, value: ir.Value) -> None:
        if node.op_type == "Gather":
            if node.attributes["axis"].value != 1:
                raise self._refuse(node, "takes some of its elements")
        else:
            other = next((v for v in node.inputs if v is not value), value)
            if node.op_type == "Mul" and not _scalar(other):
                raise self._refuse(node, "multiplies its elements")
            if node.op_type == "Add":
                self._writes(other)
        self._follow(node.outputs[0])

    def _writes(self, value: ir.Value | None) -> None:
        """Turn whatever is added to the stream."""
        maker = value.producer() if value is not None else None
        if value is None or maker is None or id(value) in self._stream:
            return
        if id(maker) in self._written:
            return
        self._written.add(id(maker))
        if _is(maker, *_WRITERS) and len(value.uses()) == 1:
            for place in _WRITERS[maker.op_type]:
                _change(self._stage, maker, place, rows=self._size)
        elif maker.domain == "" and maker.op_type == "Add":
            for inner in maker.inputs:
                self._writes(inner)
        elif maker.domain == "" and maker.op_type == "Mul" and any(_scalar(v) for v in maker.inputs):
            self._writes(next(v for v in maker.inputs if not _scalar(v)))
        elif maker.domain == "" and maker.op_type == "Gather" and maker.attributes["axis"].value == 1:
            self._writes(maker.inputs[0])
        else:
            raise self._refuse(maker, f"({maker.op_type}) is added to it and is no linear")

    def _norm(self, node: ir.Node) -> None:
        """Move a norm's weight into the linears that read it."""
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        factors = None
        if weight is not None:
            if not _own(node, (1,)):
                raise self._refuse(node, "shares its weight with another norm")
            stored = self._stage.weights[str(weight.name)]
            factors = stored.rows(0, stored.shape[0])
            self._stage.add_weight(Ones(stored))
        readers = list(_readers(node.outputs[0]))
        for reader in readers:
            if (router := _small_linear(reader)) is not None:
                self._stage.add_weight(Turned(self._stage.weights[router], columns=self._size, by=factors))
                continue
            if not _is(reader, *_READERS):
                raise self._refuse(reader, f"({reader.op_type}) reads its norm and is no linear")
            self._reads(reader, factors)

    def _reads(self, node: ir.Node, factors: Array | None) -> None:
        if id(node) in self._read:
            return
        self._read.add(id(node))
        if not _own(node, _READERS[node.op_type]):
            raise self._refuse(node, "shares its weight")
        for place in _READERS[node.op_type]:
            _change(self._stage, node, place, columns=self._size, by=factors)


def _small_linear(node: ir.Node) -> str | None:
    """Return the weight's name of a linear no recipe quantizes (a router): a product with a transposed parameter."""
    if node.domain != "" or node.op_type != "MatMul" or node.inputs[1] is None:
        return None
    maker = node.inputs[1].producer()
    if maker is None or maker.op_type != "Transpose" or not _own(maker, (0,)) or len(node.inputs[1].uses()) != 1:
        return None
    return str(maker.inputs[0].name) if maker.inputs[0] is not None else None


def _scalar(value: ir.Value | None) -> bool:
    shape = value.shape if value is not None and value.is_initializer() else None
    return shape is not None and all(dim == 1 for dim in shape)
