"""What trtexec exports of an engine: `--exportProfile`, `--exportLayerInfo` and `--exportTimes`, JSON all three.

The profile begins with how many runs it is over; then comes a layer each with its sum, its mean and, since TensorRT
8.5, its median in milliseconds. The layer information has, from `--profilingVerbosity=detailed` on, a type for each
layer and metadata that name the ONNX nodes it was made of. The times have a row for each run of the benchmark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgewright.errors import ProfileError
from edgewright.profile.layers import Averages, EngineProfile
from edgewright.profile.reading import MOST_NAME, items, number, read_json, text, word

#: A node in a layer's metadata, up to its end or to a bar, after which more is said of it.
_ONNX = "[ONNX Layer: "
#: A part of a network that Myelin compiled as a whole is spelled by its first and its last node.
_FOREIGN, _FOREIGN_END = "{ForeignNode[", "]}"
_RANGE, _FUSED = "...", " + "


def read_trtexec(path: Path, layer_info: Path | None = None, times: Path | None = None) -> EngineProfile:
    """Return the averages of an exported profile, with what the two other files say; raises ProfileError."""
    entries = items(path, read_json(path), "layers")
    if not entries or "count" not in entries[0] or "name" in entries[0]:
        raise ProfileError(f"{path.name} doesn't begin with a count of runs: give what trtexec --exportProfile wrote.")
    count = int(number(path, entries[0], "count", 0))
    if count < 1 or len(entries) < 2:
        raise ProfileError(f"{path.name} holds no layer that ran: let trtexec run the engine, and profile again.")
    info = {} if layer_info is None else _layer_info(layer_info)
    found = []
    for place, entry in enumerate(entries[1:], 1):
        name = text(path, entry, "name", place)
        kind, originals = info.get(name, ("", ()))
        median = number(path, entry, "medianMs", place) if "medianMs" in entry else None
        found.append(Averages(name, kind, number(path, entry, "averageMs", place), median, originals or parts(name)))
    notes = [f"trtexec gives means over {count:,} runs: percentiles and spread of layers are not known"]
    if missing := sorted(one.name for one in found if info and one.name not in info):
        notes.append(f"{len(missing)} layers are not in {layer_info.name if layer_info else ''}, such as {missing[0]}")
    latencies = () if times is None else _times(times)
    return EngineProfile("tensorrt", (), tuple(found), count, latencies, tuple(notes))


def parts(name: str) -> tuple[str, ...]:
    """Return the ONNX nodes that the name of a layer itself spells; the ends of a range are `FIRST...LAST`."""
    rest, *foreign = name.split(_FOREIGN)
    ranges, names = list[str](), [rest]
    for one in foreign:
        inner, end, after = one.partition(_FOREIGN_END)
        if end and _RANGE in inner:
            ranges.append(inner)
            names.append(after)
        else:
            names.append(_FOREIGN + one)
    return (*ranges, *(part.strip() for part in "".join(names).split(_FUSED) if part.strip()))


def _layer_info(path: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return type and ONNX nodes by the name of a layer."""
    data = read_json(path)
    layers = data.get("Layers") if isinstance(data, dict) else None
    if not isinstance(layers, list):
        raise ProfileError(f"{path.name} has no list of Layers: give what trtexec --exportLayerInfo wrote.")
    if layers and all(isinstance(layer, str) for layer in layers):
        raise ProfileError(
            f"{path.name} holds names alone: build and inspect the engine with --profilingVerbosity=detailed."
        )
    found = {}
    for place, layer in enumerate(items(path, layers, "layers")):
        found[text(path, layer, "Name", place)] = (word(layer, "LayerType"), _onnx(layer.get("Metadata")))
    return found


def _onnx(metadata: Any) -> tuple[str, ...]:
    """Return the ONNX nodes that a layer's metadata names."""
    told = metadata.split(_ONNX)[1:] if isinstance(metadata, str) else []
    ended = (one.partition("]") for one in told)
    names = (inner.partition("|")[0].strip() for inner, end, _ in ended if end)
    return tuple(dict.fromkeys(name for name in names if 0 < len(name) <= MOST_NAME))


def _times(path: Path) -> tuple[float, ...]:
    entries = items(path, read_json(path), "runs")
    if not entries:
        raise ProfileError(f"{path.name} holds no run: give what trtexec --exportTimes wrote.")
    return tuple(number(path, entry, "latencyMs", place) for place, entry in enumerate(entries))
