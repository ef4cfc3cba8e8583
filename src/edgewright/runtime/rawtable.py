"""Raw files of embeddings: rows of codes one after the other, little-endian, without a header.

An input file has the rows of a prompt, a table those of all tokens. They are mapped and never read whole.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgewright.errors import GenerationError, UsageError
from edgewright.files import os_errors
from edgewright.runtime.encoding import Encoding, Requantizer

Codes = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class Rows(Protocol):
    """Embeddings of a prompt, `[n, hidden]`: a RawRows, or an array of floats."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> npt.ArrayLike: ...


class Table(Protocol):
    """Has the embeddings of token ids."""

    def rows(self, ids: npt.NDArray[np.integer], /) -> Floats:
        """Return float32 `[*ids.shape, hidden]` in fresh memory."""
        ...


class _Raw:
    """A mapped file of `[rows, hidden]` codes; raises UsageError when it can't be one."""

    def __init__(self, path: Path, encoding: Encoding, hidden: int, what: str) -> None:
        if hidden < 1:
            raise UsageError(f"Rows of {what} need at least one number, not {hidden}.")
        self.path, self.encoding, self.hidden = path, encoding, hidden
        size, width = _size(path, what), hidden * encoding.itemsize
        if not size or size % width:
            raise UsageError(
                f"The {what} {path} has {size} bytes, which is no whole number of rows of {hidden} {encoding.dtype} "
                f"({width} bytes): check its type and the model's width."
            )
        # Python's integers: a table may have more than 4 GiB.
        self._count = size // width
        try:
            mapped = np.memmap(path, encoding.numpy, "r", shape=(self._count, hidden))
        except (OSError, ValueError) as error:
            raise UsageError(f"The {what} {path} can't be mapped ({error}).") from None
        self._codes: Codes = mapped.view(np.ndarray)


class RawRows(_Raw):
    """A prompt's embeddings in a file, `[n, hidden]`; a slice of it is read, and only that.

    Raises UsageError when the file is missing, empty or not a whole number of rows.
    """

    def __init__(self, path: str | Path, encoding: Encoding, hidden: int) -> None:
        super().__init__(Path(path), encoding, hidden, "embedding file")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> Floats:
        """Return float32 `[n, hidden]` in fresh memory."""
        return self.encoding.dequantize(self._codes[part])


class RawTable(_Raw):
    """A table of embeddings in a file, `[vocab, hidden]`, row i that of token i.

    Raises UsageError when the file is missing, empty or not a whole number of rows. Safe for several threads at once.
    """

    def __init__(self, path: str | Path, encoding: Encoding, hidden: int) -> None:
        super().__init__(Path(path), encoding, hidden, "embedding table")

    @property
    def vocab(self) -> int:
        """How many rows there are."""
        return self._count

    def codes(self, ids: npt.NDArray[np.integer]) -> Codes:
        """Return the codes `[*ids.shape, hidden]` in fresh memory; raises GenerationError on an id without a row."""
        if ids.size and not 0 <= (low := int(ids.min())) <= (high := int(ids.max())) < self._count:
            raise GenerationError(
                f"The embedding table {self.path} has no row for token {low if low < 0 else high}: it has "
                f"{self._count} rows of {self.hidden}."
            )
        picked: Codes = self._codes[ids]
        return picked

    def rows(self, ids: npt.NDArray[np.integer]) -> Floats:
        """Return float32 `[*ids.shape, hidden]` in fresh memory; raises GenerationError on an id without a row."""
        return self.encoding.dequantize(self.codes(ids))


class LookUp:
    """A dialog's view of a table: rows as the model's quantized input has them, and what was counted on the way.

    Without a requantizer, rows are the table's own values. `lookups` counts the rows so far. One for each dialog, not
    for several threads at once; the table may be shared.
    """

    def __init__(self, table: RawTable, requantizer: Requantizer | None = None) -> None:
        if requantizer is not None and requantizer.source != table.encoding:
            raise UsageError(
                f"The embedding table {table.path} is {table.encoding} and is to be requantized from "
                f"{requantizer.source}: state one encoding."
            )
        self.table, self.requantizer, self.lookups = table, requantizer, 0

    @property
    def saturated(self) -> int:
        """How many codes left the range of the model's input so far."""
        return 0 if self.requantizer is None else self.requantizer.saturated

    def rows(self, ids: npt.NDArray[np.integer]) -> Floats:
        """Return float32 `[*ids.shape, hidden]` in fresh memory; raises GenerationError on an id without a row."""
        self.lookups += ids.size
        codes = self.table.codes(ids)
        if self.requantizer is None:
            return self.table.encoding.dequantize(codes)
        return self.requantizer.target.dequantize(self.requantizer(codes))


def write_raw(path: Path, encoding: Encoding, blocks: Iterable[npt.ArrayLike]) -> int:
    """Write blocks of rows `[n, hidden]` one after the other; returns how many values were cut to the codes' range.

    The file appears only when complete, and replaces one that was there. Raises OutputError when the disk refuses,
    GenerationError on values that are not a number.
    """
    scratch, saturated = path.with_name(f".{path.name}.partial-{os.getpid()}"), 0
    with os_errors(path.name):
        try:
            with scratch.open("wb") as file:
                for block in blocks:
                    codes, cut = encoding.quantize(block)
                    saturated += cut
                    file.write(codes.tobytes())
            scratch.replace(path)
        finally:  # which a disk that can't be written refuses as well
            scratch.unlink(missing_ok=True)
    return saturated


def _size(path: Path, what: str) -> int:
    try:
        found = path.stat()
    except OSError as error:
        raise UsageError(f"The {what} {path} can't be read ({error.strerror or error}): check the path.") from None
    except ValueError:  # a zero byte in the path
        raise UsageError(f"The {what} {str(path)!r} is no path.") from None
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"The {what} {path} is not a file: check the path.")
    return found.st_size
