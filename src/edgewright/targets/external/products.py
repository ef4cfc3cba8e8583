"""What a program left behind: its products are taken over."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from edgewright.errors import ToolError

#: Files of the folder `engine` that are written here.
RECORD, LOG = "tool.json", "tool.log"


def collect(work: Path, patterns: Sequence[str], own: Sequence[str], engine: Path, title: str) -> list[str]:
    """Move every match of every pattern from `work` into `engine`; returns their paths there, in the patterns' order.

    `own` are the files that the program was given, which are no products. A leading folder `output` is left away.
    Raises ToolError where a pattern has no match, or one is no plain file of the folder.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        matches = sorted(path for path in work.glob(pattern) if not path.is_dir() or path.is_symlink())
        names = {path: path.relative_to(work).as_posix() for path in matches}
        matches = [path for path in matches if names[path] not in own and not names[path].startswith("calibration/")]
        if not matches:
            raise ToolError(f"{title} ended without an error and left nothing that matches {pattern}")
        for path in matches:
            _require_plain(work, path, title)
            name = names[path].removeprefix("output/")
            if not name.isprintable() or "\\" in name:  # what is no UTF-8 isn't printable either
                raise ToolError(f"{title} left a product called {name!r}, which no bundle can name: rename it")
            if name in (RECORD, LOG):
                raise ToolError(f"{title} left a product called {name}, which is a name of ours: rename it")
            if found.setdefault(name, path) != path:
                raise ToolError(f"{title} left two products called {name}: narrow the patterns of its tool file")
    for name, path in found.items():
        place = engine / name
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    return list(found)


def _require_plain(work: Path, path: Path, title: str) -> None:
    parts = path.relative_to(work).parts
    steps = [work.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    if any(step.is_symlink() for step in steps):
        raise ToolError(f"{title} left {'/'.join(parts)}, which is a link: products must be files of its own folder")
    if not stat.S_ISREG(path.stat().st_mode):
        raise ToolError(f"{title} left {'/'.join(parts)}, which is no plain file")
