"""Finds what range every activation has: the float graph is run over a text, and only ranges are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.dialects.qnn_graph import MASK, StaticGraph
from edgewright.errors import CalibrationDataError, OutOfMemoryError, UnsupportedFormatError, first_line
from edgewright.quiet_ort import ort
from edgewright.runtime.engines.qnn import masks
from edgewright.runtime.text import Tokenizer
from edgewright.runtime.vocabulary import SIDECAR, read_sidecar
from edgewright.targets.qnn.graphs import WeightFile, model_of

Ids = npt.NDArray[np.int64]
_SEED = 2026
_LONGEST_TEXT = 16 << 20
_MOST_TOKENS = 1 << 22
#: Hides a score in float32 without making it infinite.
_HIDDEN = -1e4


def calibration_ids(sidecars: Path, text: Path | None, count: int, vocab: int) -> tuple[Ids, str]:
    """Return `count` token ids of a text, repeated where it is shorter, and what they are of.

    Without a `text` it is the sample that verification uses, and without a tokenizer seeded random ids. Raises
    CalibrationDataError on a text that can't be read or has no tokens, or that has no tokenizer.
    """
    tokenizer = sidecars / "tokenizer.json"
    if not tokenizer.is_file():
        if text is not None:
            raise CalibrationDataError(
                f"{text} can't be turned into tokens: the checkpoint has no tokenizer, so leave calibration out."
            )
        ids = np.random.default_rng(_SEED).integers(0, vocab, count)
        return ids, "seeded random tokens, since there is no tokenizer"
    said, words = ("the sample text", _sample()) if text is None else (text.name, read_text(text))
    found = np.asarray(Tokenizer.from_files(tokenizer, {}).encode(words), dtype=np.int64)
    found = _columns(found, sidecars / SIDECAR, vocab)
    if not len(found):
        raise CalibrationDataError(f"{said} holds no tokens of this model: give a text in its language.")
    return np.resize(found, count), said


def _columns(ids: Ids, reduced: Path, vocab: int) -> Ids:
    """Return the places of a text's ids in the tables; those that a reduced vocabulary lacks are left out."""
    if not reduced.is_file():
        return ids[ids < vocab]
    vocabulary = read_sidecar(reduced, _MOST_TOKENS)
    return vocabulary.columns(ids[np.isin(ids, vocabulary.ids)])


def _sample() -> str:
    return (resources.files("edgewright.verify") / "data" / "sample.txt").read_text(encoding="utf-8")


def read_text(path: Path) -> str:
    """Return a text to calibrate on; raises CalibrationDataError where it can't be read."""
    try:
        if path.stat().st_size > _LONGEST_TEXT:
            raise CalibrationDataError(f"{path} is larger than 16 MB: give a shorter text.")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationDataError(f"{path} can't be read as UTF-8 text ({first_line(error)}): give another.") from None


def ranges_of(
    graph: StaticGraph, file: WeightFile, folder: Path, tables: Mapping[str, npt.NDArray[Any]], ids: Ids
) -> dict[str, tuple[float, float]]:
    """Run the float graph over `ids` and return the smallest and largest value of every tensor, tables included.

    The graph's rows divide the ids and its context holds all of them. Peak memory is the float32 weights and one call.
    """
    made = [name for node in graph.nodes for name in node.output]
    taps = [name for name in made if name not in graph.fixed and name not in graph.masked]
    session = _session(model_of(graph, file, None, "calibration", taps).SerializeToString(), folder)
    found = dict(file.ranges)
    caches = {name: np.zeros(graph.shapes[name], dtype=np.float32) for name in graph.inputs if name.startswith("past_")}
    for past in range(0, len(ids), graph.rows):
        feeds = _feeds(graph, tables, ids[past : past + graph.rows], past) | caches
        for name, (low, high) in _run(session, feeds, taps, caches, past, graph.rows).items():
            before = found.get(name, (low, high))
            found[name] = (min(before[0], low), max(before[1], high))
    found |= {name: (float(table.min()), float(table.max())) for name, table in tables.items()}
    return found


def _session(model: bytes, folder: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UnsupportedFormatError(f"ONNX Runtime refuses the graph for the HTP: {first_line(error)}") from None


def _feeds(graph: StaticGraph, tables: Mapping[str, npt.NDArray[Any]], ids: Ids, past: int) -> dict[str, Any]:
    seen = masks({name: graph.windows[name] for name in graph.inputs if name.startswith(MASK)}, graph.rows, past,
                 graph.context)  # fmt: skip
    feeds: dict[str, Any] = {
        name: np.where(mask, np.float32(0), np.float32(_HIDDEN))[None, None] for name, mask in seen.items()
    }
    feeds |= {name: table[past : past + graph.rows][None, None] for name, table in tables.items()}
    return feeds | {"input_ids": ids[None].astype(np.int32)}


def _run(
    session: ort.InferenceSession,
    feeds: Mapping[str, Any],
    taps: Sequence[str],
    caches: Mapping[str, npt.NDArray[np.float32]],
    past: int,
    rows: int,
) -> dict[str, tuple[float, float]]:
    """Run one call, move its new rows into the caches and return its ranges."""
    names = [f"{name.removesuffix('_in')}_out" for name in caches]
    names += [f"{tap}.{kind}" for tap in taps for kind in ("min", "max")]
    try:
        values = dict(zip(names, session.run(names, dict(feeds)), strict=True))
    except MemoryError:
        raise OutOfMemoryError("There is not enough memory to calibrate: use fewer tokens.") from None
    except Exception as error:
        raise UnsupportedFormatError(f"The graph for the HTP fails in float32: {first_line(error)}") from None
    for name, cache in caches.items():
        new = values[f"{name.removesuffix('_in')}_out"]
        place: list[slice] = [slice(None)] * 4
        place[3 if name.startswith("past_key") else 2] = slice(past, past + rows)
        if past + rows <= cache.shape[3 if name.startswith("past_key") else 2]:
            cache[tuple(place)] = new
    return {tap: (float(values[f"{tap}.min"]), float(values[f"{tap}.max"])) for tap in taps}
