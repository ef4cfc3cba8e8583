"""What the dialogs say, in a file each: text as it comes, with the query it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from edgewright.bench.records import DIALOGS, RUN
from edgewright.files import os_errors
from edgewright.runtime.scheduling.work import JobRecord


class DialogLogs:
    """The open logs of a run folder, by dialog. Raises OutputError where they can't be written."""

    def __init__(self, folder: Path, dialogs: Sequence[str]) -> None:
        self._logs = {name: _Log(folder / DIALOGS / f"{name}.log") for name in dialogs}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for log in self._logs.values():
            log.close()

    def writer(self, dialog: str, part: str, repeat: int) -> Callable[[int, str], None]:
        """Return what takes the text of a dialog's queries: the iteration, and a piece of text."""
        log, query = self._logs[dialog], _query(part, repeat)
        return lambda iteration, piece: log.write(f"{query}, iteration {iteration}", piece)

    def ended(self, dialog: str, part: str, repeat: int, record: JobRecord) -> None:
        """Note how a query ended."""
        title = f"{_query(part, repeat)}, iteration {record.iteration}"
        self._logs[dialog].close_query(title, _told(record.finish, record.error, record.facts))


class _Log:
    """A file of which each query begins with a line in brackets, and ends with one."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        with os_errors(self._name):
            self._file = path.open("a", encoding="utf-8", newline="\n")
        self._title: str | None = None

    def write(self, title: str, piece: str) -> None:
        with os_errors(self._name):
            if title != self._title:
                self._file.write(f"[{title}]\n")
                self._title = title
            self._file.write(piece)
            self._file.flush()

    def close_query(self, title: str, told: str) -> None:
        self.write(title, f"\n[{title}: {told}]\n\n")
        self._title = None

    def close(self) -> None:
        self._file.close()


def _query(part: str, repeat: int) -> str:
    """Return how a log calls a part: a solo run's name is the file's already."""
    return f"run {repeat}" if part == RUN else part.partition(":")[0]


def _told(finish: str, error: str | None, facts: Mapping[str, Any]) -> str:
    words = [finish if error is None else f"{finish}, {error}"]
    if "finish_reason" in facts:
        reason = facts["finish_reason"]  # None where the query was stopped
        words.append(f"{facts.get('generated_tokens')} tokens{'' if reason is None else f', {reason}'}")
    if "text" not in facts and facts.get("tokens"):
        words.append("ids " + " ".join(map(str, facts["tokens"])))
    if "actions" in facts:
        words.append(f"{facts['actions']} actions")
    return "; ".join(words)
