"""Progress on stderr: bars on a terminal, one line per finished step elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgewright.cli._signals import check_stop
from edgewright.progress import Advance, Progress


def progress_for(*, quiet: bool) -> Progress:
    """Return what fits stderr; a terminal without tqdm gets plain lines."""
    if quiet:
        return QuietProgress()
    if sys.stderr.isatty():
        try:
            import tqdm
        except ModuleNotFoundError:
            return PlainProgress()
        return BarProgress(tqdm.tqdm)
    return PlainProgress()


class QuietProgress(Progress):
    """Says nothing; like the others it hears of a stop."""

    @contextmanager
    def step(self, title: str, total: int = 0) -> Iterator[Advance]:
        """Run a step."""
        check_stop()
        yield lambda amount: check_stop()


class _Noting(Progress):
    """Says on stderr what isn't as expected."""

    def note(self, text: str) -> None:
        """Tell it in a line of its own."""
        print(f"note: {text}", file=sys.stderr, flush=True)


class PlainProgress(_Noting):
    """One line for every step that ended well."""

    @contextmanager
    def step(self, title: str, total: int = 0) -> Iterator[Advance]:
        """Run a step and say how long it took."""
        check_stop()
        start = time.perf_counter()
        yield lambda amount: check_stop()
        print(f"{title} ... {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


class BarProgress(_Noting):
    """A bar for a step of known size, a clock for any other; both stay when the step ends."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    @contextmanager
    def step(self, title: str, total: int = 0) -> Iterator[Advance]:
        """Run a step under a bar."""
        check_stop()
        known = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {elapsed_s:.1f} s"
        bar = self._bar(
            total=total or None,
            desc=title,
            unit_scale=True,
            dynamic_ncols=True,
            file=sys.stderr,
            bar_format=known if total else "{desc} ... {elapsed_s:.1f} s",
        )

        def advance(amount: int) -> None:
            check_stop()
            bar.update(amount)

        with bar:
            yield advance
