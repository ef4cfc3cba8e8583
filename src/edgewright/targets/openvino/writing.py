"""Writes OpenVINO's model as `engine.xml`, whose constants lie in the stage's weight file: no weight is there twice.

OpenVINO keeps constants in one file beside a model. It gets the weight file: what stands in it already is pointed to,
and the rest, shapes and folded numbers, is added behind its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import openvino as ov

from edgewright.graph.writer import MODEL_FILE, WEIGHTS_FILE

ENGINE_FILE = "engine.xml"
_SCRATCH, _SCRATCH_DATA, _GROWN = "engine.scratch.xml", "engine.scratch.bin", "engine.scratch.weights"
_ALIGNMENT = 64


def write_model(model: ov.Model, folder: Path) -> None:
    """Write `folder/engine.xml` over `folder/weights.bin`, which grows by what it lacks."""
    scratch, data = folder / _SCRATCH, folder / _SCRATCH_DATA
    try:
        ov.serialize(model, str(scratch), str(data))
        tree = ElementTree.parse(scratch)
        stored = _stored(folder)
        weights = np.memmap(folder / WEIGHTS_FILE, np.uint8, mode="r") if stored else np.zeros(0, np.uint8)
        found = np.fromfile(data, np.uint8) if not data.stat().st_size else np.memmap(data, np.uint8, mode="r")
        end = max((offset + length for offset, length in stored.values()), default=0)
        tail = _relink(tree.getroot(), found, weights, stored, end)
        _grow(folder / WEIGHTS_FILE, folder / _GROWN, end, tail)
        (folder / ENGINE_FILE).write_bytes(ElementTree.tostring(_bare(tree.getroot())) + b"\n")
    finally:
        for name in (_SCRATCH, _SCRATCH_DATA, _GROWN):
            (folder / name).unlink(missing_ok=True)


def _stored(folder: Path) -> dict[str, tuple[int, int]]:
    """Return offset and length of each of the graph's tensors in the weight file, by name."""
    places = {}
    for tensor in onnx.load(folder / MODEL_FILE, load_external_data=False).graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            places[tensor.name] = int(entries.get("offset", 0)), int(entries["length"])
    return places


def _relink(
    root: ElementTree.Element, found: np.ndarray, weights: np.ndarray, stored: dict[str, tuple[int, int]], end: int
) -> bytes:
    """Point every constant to its bytes in the weight file; returns what has to stand behind `end` for that."""
    tail, places = bytearray(), dict[bytes, int]()
    start = -(-end // _ALIGNMENT) * _ALIGNMENT
    for layer, data in _constants(root):
        offset, size = int(data.get("offset", 0)), int(data.get("size", 0))
        piece = found[offset : offset + size]
        place = stored.get(layer.get("name", ""))
        if place is not None and place[1] == size and np.array_equal(weights[place[0] : place[0] + size], piece):
            data.set("offset", str(place[0]))
            continue
        raw = piece.tobytes()
        if raw not in places:
            tail += bytes(-len(tail) % _ALIGNMENT)
            places[raw] = start + len(tail)
            tail += raw
        data.set("offset", str(places[raw]))
    return bytes(start - end) + bytes(tail)


def _constants(root: ElementTree.Element) -> Iterator[tuple[ElementTree.Element, ElementTree.Element]]:
    """Yield each constant of a model and of the models in its nodes, with the element that says where its bytes are."""
    for layer in root.iter("layer"):
        data = layer.find("data")
        if layer.get("type") == "Const" and data is not None:
            yield layer, data


def _grow(weights: Path, scratch: Path, end: int, tail: bytes) -> None:
    """Put `tail` behind the first `end` bytes of a file, which another bundle may share."""
    with scratch.open("wb") as new, weights.open("rb") as old:
        remaining = end
        while remaining:
            piece = old.read(min(remaining, 1 << 24))
            new.write(piece)
            remaining -= len(piece)
        new.write(tail)
    scratch.replace(weights)


def _bare(root: ElementTree.Element) -> ElementTree.Element:
    """Return a model's description without what is not about the model."""
    told = root.find("rt_info")
    if told is not None:
        root.remove(told)
    return root
