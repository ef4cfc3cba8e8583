"""Plain text for calibration: files read whole, tokenized, cut into windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.calibration.encoding import decode_text
from edgewright.calibration.order import chance, shuffled
from edgewright.errors import CalibrationDataError, UsageError
from edgewright.files import sha256_of
from edgewright.runtime.text import Tokenizer

Ids = npt.NDArray[np.int64]

#: What image files are named like.
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
#: More than this is not read: a calibration set is a sample.
MAX_TEXT_BYTES = 128 << 20
#: Of longer texts, blocks of about this many characters in all are tokenized, chosen by the seed.
MAX_CHARACTERS = 4 << 20
_BLOCK_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class TextFile:
    """A file's text with its record (name, bytes, sha256)."""

    text: str
    record: dict[str, Any]


def list_files(path: Path, suffixes: Sequence[str]) -> list[tuple[str, Path]]:
    """Return (name, path) of a file, or of all files below a folder that end so, in the order of their names.

    Names are relative to the folder, with slashes. Files and folders whose name starts with a dot are left out.
    """
    if not path.is_dir():
        return [(path.name, path)]
    found = ((file.relative_to(path), file) for file in path.rglob("*") if file.suffix.lower() in suffixes)
    named = [(r.as_posix(), f) for r, f in found if f.is_file() and not any(p.startswith(".") for p in r.parts)]
    return sorted(named)


def file_record(name: str, path: Path) -> dict[str, Any]:
    """Return what the record says of an input file: name, bytes, sha256."""
    return {"name": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}


def read_texts(files: Iterable[tuple[str, Path]]) -> list[TextFile]:
    """Read text files; raises CalibrationDataError when one isn't UTF-8, can't be read, or they are too many bytes."""
    texts: list[TextFile] = []
    total = 0
    for name, path in files:
        try:
            total += path.stat().st_size
            if total > MAX_TEXT_BYTES:
                raise CalibrationDataError(
                    f"The calibration text is larger than {MAX_TEXT_BYTES >> 20} MiB at {name}: give a part of it, "
                    "some hundred sequences are enough."
                )
            texts.append(TextFile(decode_text(path.read_bytes(), name), file_record(name, path)))
        except OSError as error:
            raise CalibrationDataError(f"{name} can't be read ({error.strerror}): check its permissions.") from None
    return texts


def prefix_of(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that the tokenizer puts in front of a text (a beginning-of-text token), found by trying."""
    bare, dressed = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    starts = [at for at in range(len(dressed) - len(bare) + 1) if dressed[at : at + len(bare)] == bare]
    return dressed[: starts[0]] if bare and starts else []


def windows(
    texts: Sequence[str], tokenizer: Tokenizer, *, length: int, seed: int, notes: list[str]
) -> tuple[list[Ids], int]:
    """Return the windows of the texts in an order that the seed decides, and the number of tokens of a prefix.

    A window holds what the tokenizer puts in front of a text and then tokens of one text, `length` in all; windows
    don't overlap, and the seed decides where the first one begins. A text with fewer tokens is one shorter window.
    Raises UsageError when the prefix alone fills a window.
    """
    prefix = prefix_of(tokenizer)
    room = length - len(prefix)
    if room < 1:
        raise UsageError(f"Sequences of {length} tokens have no room behind the {len(prefix)} of the prefix: use more.")
    front = np.array(prefix, np.int64)
    found: list[Ids] = []
    for place, blocks in enumerate(_runs(texts, seed, notes)):
        ids = np.concatenate([np.array(tokenizer.encode(b, add_special_tokens=False), np.int64) for b in blocks])
        start = chance(seed, "phase", place) % (ids.size % room + 1) if ids.size > room else 0
        stop = max(ids.size - room, 0) + 1 if ids.size else 0
        found += [np.concatenate([front, ids[at : at + room]]) for at in range(start, stop, room)]
    return [found[index] for index in shuffled(len(found), seed, "windows")], len(prefix)


def _runs(texts: Sequence[str], seed: int, notes: list[str]) -> Iterator[list[str]]:
    """Yield runs of neighbouring blocks, each of one text; all there are, or as many as may be tokenized.

    How many that is does not depend on how many windows are wanted, so that fewer windows are the first of more.
    """
    cuts = [(number, start, stop) for number, text in enumerate(texts) for start, stop in _blocks(text)]
    total = sum(map(len, texts))
    chosen = list(range(len(cuts)))
    if total > MAX_CHARACTERS:
        chosen = sorted(shuffled(len(cuts), seed, "blocks")[: max(1, len(cuts) * MAX_CHARACTERS // total)])
        notes.append(f"{len(chosen)} of {len(cuts)} blocks of the text were tokenized, chosen by the seed")
    # Neighbours have the same distance from their place in the list.
    for _, run in groupby(enumerate(chosen), key=lambda pair: (pair[1] - pair[0], cuts[pair[1]][0])):
        pieces = [cuts[index] for _, index in run]
        yield [texts[number][start:stop] for number, start, stop in pieces]


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and stop of blocks that end after a line or before a space where there is one."""
    start = 0
    while start < len(text):
        stop = start + _BLOCK_CHARACTERS
        if stop < len(text):
            middle = start + _BLOCK_CHARACTERS // 2
            line, space = text.rfind("\n", middle, stop) + 1, text.rfind(" ", middle, stop)
            stop = line or (space if space > 0 else stop)
        stop = min(stop, len(text))
        yield start, stop
        start = stop
