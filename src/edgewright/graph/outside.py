"""The pass that takes the embedding table out of a graph: rows of embeddings come in where token ids came in."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from edgewright.contract import TensorContract
from edgewright.errors import ModelError
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import module_of, number_of
from edgewright.graph.stage import IR_DTYPES, OutsideTable, Stage

#: The inputs that are token ids: of language models, and of a policy's prefix.
_IDS = ("input_ids", "token_ids")
#: The input that takes their place.
EMBEDDINGS = "inputs_embeds"
#: The ops that look rows up, in every format a table can have.
_LOOK_UPS = ("Embedding", "QuantEmbedding", "DecodeRows")


def take_table_outside(stage: Stage) -> None:
    """Make `inputs_embeds` float32 `[batch, seq, hidden]` of the token ids, in place; after quantization.

    What is fed are the rows as the first layer reads them: decoded, widened and multiplied where the model multiplies
    all of them by one number. `stage.outside` then says which table that was. A head that is tied to the table keeps
    its weight in the graph. Raises ModelError, which names them, for graphs that read several tables or the ids.
    """
    ids = next(value for value in stage.graph.inputs if value.name in _IDS)
    taken = next(tensor for tensor in stage.contract.inputs if tensor.name == ids.name)
    node = _look_up(ids)
    table = node.inputs[1]
    assert table is not None
    producer = stage.producers[str(table.name)]
    value, multiplier = _fed(stage, node)
    tied = any(use.node is not node for part in node.inputs[1:] if part is not None for use in part.uses())
    hidden = int(producer.weight.shape[1])  # type: ignore[attr-defined]
    stage.outside = OutsideTable(_module(node), str(value.name), producer, multiplier)
    fed = TensorContract(EMBEDDINGS, "float32", (*taken.shape, hidden))
    _swap(stage, ids, value, fed)
    stage.notes.append(f"the embedding table ({stage.outside.module}) stands outside the graph")
    if tied:
        stage.notes.append("the head is tied to the embedding table: graph and file each have a copy of its bytes")


def _look_up(ids: ir.Value) -> ir.Node:
    """Return the node that looks ids up in the only table they index."""
    tables = []
    for node, place in ids.uses():
        if node.domain == EW and node.op_type in _LOOK_UPS and place == 0:
            tables.append(node)
        elif node.op_type != "Shape" or node.attributes.get("end") is None:  # the width would count as well
            raise ModelError(
                f"The embedding table can't stand outside the graph: {node.name} computes with token ids themselves. "
                "Use --embeddings inside."
            )
    if len(tables) != 1:
        names = " and ".join(sorted(_module(node) for node in tables))
        raise ModelError(
            f"The embedding table can't stand outside the graph: token ids index {len(tables)} tables of this model "
            f"({names}). Use --embeddings inside."
        )
    return tables[0]


def _module(node: ir.Node) -> str:
    """Return the module a table belongs to, of the name of its first tensor."""
    table = node.inputs[1]
    return str(table.name if table is not None else module_of(node)).rsplit(".", 1)[0]


def _fed(stage: Stage, node: ir.Node) -> tuple[ir.Value, float | None]:
    """Return the value that stands for the rows as the first layer reads them, and what they are multiplied by."""
    value = node.outputs[0]
    after = _only_reader(value)
    if after is not None and after.op_type == "Cast" and after.attributes["to"].value == ir.DataType.FLOAT:
        value = after.outputs[0]
        after = _only_reader(value)
    if after is not None and after.op_type == "Mul" and not after.domain:
        factor = next((number_of(stage, v) for v in after.inputs if v is not None and v is not value), None)
        if isinstance(factor, np.float32):
            return after.outputs[0], float(factor)
    return value, None


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 else None


def _swap(stage: Stage, ids: ir.Value, value: ir.Value, fed: TensorContract) -> None:
    """Put an input in the place of the token ids and of `value`."""
    new = ir.Value(name=fed.name, shape=ir.Shape(fed.shape), type=ir.TensorType(IR_DTYPES[fed.dtype]))
    place = list(stage.graph.inputs).index(ids)
    stage.graph.inputs[place] = new
    ir.convenience.replace_all_uses_with(value, new)
    for node, index in list(ids.uses()):
        if node.op_type == "Shape":
            node.replace_input_with(index, new)
    stage.drop_unused()
    inputs = tuple(fed if tensor.name == ids.name else tensor for tensor in stage.contract.inputs)
    stage.contract = dataclasses.replace(stage.contract, inputs=inputs)
