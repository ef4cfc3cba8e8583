"""How long work tells of itself: named steps with a size, for whoever wants to show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


class Progress:
    """Silent; the command line has one with bars. `total` is in bytes (or any unit), 0 when unknown."""

    @contextmanager
    def step(self, title: str, total: int = 0) -> Iterator[Advance]:
        """Run a step; the yielded function is told of finished amounts."""
        yield lambda amount: None

    def note(self, text: str) -> None:
        """Tell of something that is not as expected but stops nothing."""


SILENT = Progress()
