"""What is in an ONNX graph, without loading its weights."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from edgewright.errors import UnsupportedFormatError

#: Bits per element of the types that don't fill bytes.
_SUB_BYTE_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}


def describe_graph(path: Path) -> dict[str, Any]:
    """Return the description; raises UnsupportedFormatError when the file is no ONNX model."""
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        raise UnsupportedFormatError(f"{path} is not an ONNX model: give a file that export or deploy wrote.") from None
    if not model.graph.node:
        raise UnsupportedFormatError(f"{path} holds no graph: give a file that export or deploy wrote.")
    tensors = tensors_of(model)
    operators = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph.node)
    return {
        "kind": "ONNX graph",
        "path": str(path),
        "producer": model.producer_name,
        "ir_version": model.ir_version,
        "opsets": ", ".join(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in model.opset_import),
        "functions": len(model.functions),
        "nodes": len(model.graph.node),
        "bytes": sum(bytes_by_dtype(tensors).values()),
        "bytes_by_dtype": bytes_by_dtype(tensors),
        "operators": dict(operators.most_common()),
        "inputs": [_value(value) for value in model.graph.input],
        "outputs": [_value(value) for value in model.graph.output],
        "tensors": tensors,
    }


def tensors_of(model: onnx.ModelProto) -> list[dict[str, Any]]:
    """Return name, dtype, shape and size in bytes of every initializer; `alias` marks bytes that were listed before."""
    result = []
    places: set[tuple[str, str]] = set()
    for tensor in model.graph.initializer:
        dtype = onnx.TensorProto.DataType.Name(tensor.data_type)
        place = {entry.key: entry.value for entry in tensor.external_data}
        where = (place.get("location", ""), place.get("offset", "0"))
        alias = bool(place) and where in places
        places.add(where)
        result.append(
            {
                "name": tensor.name,
                "dtype": _numpy_name(dtype),
                "shape": list(tensor.dims),
                "bytes": -(-math.prod(tensor.dims) * _bits(dtype, tensor.data_type) // 8),
                "alias": alias,
            }
        )
    return result


def bytes_by_dtype(tensors: list[dict[str, Any]]) -> dict[str, int]:
    """Return the bytes of each dtype, largest first, aliases not counted."""
    count: Counter[str] = Counter()
    for tensor in tensors:
        if not tensor["alias"]:
            count[tensor["dtype"]] += tensor["bytes"]
    return dict(count.most_common())


def _numpy_name(name: str) -> str:
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower())


def _bits(name: str, data_type: int) -> int:
    if name in _SUB_BYTE_BITS:
        return _SUB_BYTE_BITS[name]
    if name in ("STRING", "UNDEFINED"):
        return 0
    bits: int = onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize * 8
    return bits


def _value(value: onnx.ValueInfoProto) -> dict[str, Any]:
    tensor = value.type.tensor_type
    return {
        "name": value.name,
        "dtype": _numpy_name(onnx.TensorProto.DataType.Name(tensor.elem_type)),
        "shape": [d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in tensor.shape.dim],
    }
