"""What the sequences of a session were fed, kept where they may have to be fed again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
#: A token's id, or its row of embeddings where it was fed as one.
Fed = int | Array


class History:
    """One list for each sequence; a token takes 8 bytes, or those of its row of embeddings."""

    def __init__(self, batch: int) -> None:
        self._rows: list[list[Fed]] = [[] for _ in range(batch)]

    def extend(self, group: slice, fed: Array) -> None:
        """Add what the sequences of `group` were fed: ids `[rows, n]`, or embeddings `[rows, n, hidden]`."""
        for row, items in zip(self._rows[group], fed, strict=True):
            row.extend((int(i) for i in items) if items.ndim == 1 else items.copy())

    def cut(self, lengths: npt.NDArray[np.int64]) -> None:
        """Forget everything after the first `lengths` `[batch]` tokens."""
        for row, length in zip(self._rows, lengths, strict=True):
            del row[int(length) :]

    def clear(self, group: slice) -> None:
        """Forget the sequences of `group`."""
        for row in self._rows[group]:
            row.clear()

    def copy(self) -> History:
        """Return an independent history of the same content."""
        twin = History(0)
        twin._rows = [list(row) for row in self._rows]
        return twin

    def held(self, group: slice, embed: Callable[[Array], Array]) -> Array:
        """Return what the one sequence of `group` was fed: ids `[1, n]`, or rows `[1, n, hidden]` where any was one.

        `embed` gives the rows of ids.
        """
        (row,) = self._rows[group]
        if not any(isinstance(item, np.ndarray) for item in row):
            return np.asarray([row], dtype=np.int64)
        return np.stack([item if isinstance(item, np.ndarray) else embed(np.asarray([item]))[0] for item in row])[None]
