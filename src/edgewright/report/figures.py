"""The figures of a run by name, and the files they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from edgewright.bench.records.folder import FIGURES as FOLDER
from edgewright.files import os_errors
from edgewright.report.draw_time import Drawn, accelerator, queries, steps, tokens_over_time
from edgewright.report.draw_values import achieved_shares, times_to_first_token, token_gaps, waiting_times
from edgewright.report.style import Size, drawing, inline_svg, png, svg
from edgewright.report.subject import Subject

Draw = Callable[[Subject, Size, str], Drawn | None]


@dataclass(frozen=True)
class Kind:
    """A figure: its file's name, its title, how it is drawn, and what is missing where it can't be."""

    name: str
    title: str
    draw: Draw
    needs: str


KINDS = (
    Kind("accelerator", "Who had the accelerator", accelerator, "no steps of the concurrent run"),
    Kind("steps", "Step by step", steps, ""),
    Kind("queries", "Queries", queries, ""),
    Kind("tokens", "Tokens over time", tokens_over_time, "no tokens of the concurrent run"),
    Kind("shares", "Requested and achieved shares", achieved_shares, "no segment of the summary has shares"),
    Kind("token_gaps", "Time between tokens", token_gaps, "no dialog has two tokens of one query"),
    Kind("first_token", "Time to the first token", times_to_first_token, "no query with a token has ended"),
    Kind("waiting", "Waiting for the accelerator", waiting_times, "no step waited"),
)


@dataclass(frozen=True)
class Inline:
    """A figure in a page, drawn for a desktop and for a phone."""

    name: str
    title: str
    wide: str
    narrow: str
    captions: tuple[str, str]


def draw_files(subject: Subject, folder: Path, formats: Iterable[str] = ("png", "svg")) -> list[Path]:
    """Write the figures that can be drawn into `folder` and return their paths; raises OutputError."""
    written = []
    wanted = [one for one in (("png", png), ("svg", svg)) if one[0] in set(formats)]
    with os_errors(FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        with drawing(kind.name):
            drawn = kind.draw(subject, "wide", note_of(subject, kind))
            if drawn is None:
                continue
            for ending, save in wanted:
                path = folder / f"{kind.name}.{ending}"
                with os_errors(path.name):
                    path.write_bytes(save(drawn.figure))
                written.append(path)
    return written


def draw_inline(subject: Subject, prefix: str = "") -> tuple[list[Inline], list[str]]:
    """Return the figures of a page, and what is missing of the others; `prefix` keeps ids of several runs apart."""
    found, missing = [], []
    for kind in KINDS:
        key = f"{prefix}{kind.name}"
        with drawing(key):
            drawn = {size: kind.draw(subject, size, _label(subject)) for size in ("wide", "narrow")}
            wide, narrow = drawn["wide"], drawn["narrow"]
            if wide is None and narrow is None:
                missing += [f"{kind.title}: {kind.needs}"] if kind.needs else []
                continue
            wide, narrow = wide or narrow, narrow or wide
            assert wide is not None
            assert narrow is not None
            found.append(
                Inline(
                    kind.name,
                    kind.title,
                    inline_svg(wide.figure, f"{key}-wide-", kind.title),
                    inline_svg(narrow.figure, f"{key}-narrow-", kind.title),
                    (wide.caption, narrow.caption),
                )
            )
    if not len(subject.shown):
        missing = []  # it was said that there is no step
    return found, missing


def note_of(subject: Subject, kind: Kind) -> str:
    """Return what stands in the corner of a figure that is looked at alone."""
    return " · ".join(part for part in (kind.title, subject.title, _label(subject)) if part)


def _label(subject: Subject) -> str:
    """Return what every figure of a run must say of it."""
    return "simulated device" if subject.run.simulated else ""
