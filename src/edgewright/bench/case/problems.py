"""What is wrong with a case: all of it at once, each with the place where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgewright.errors import EdgewrightError, UsageError


@dataclass(frozen=True)
class Problem:
    """A sentence about `where`: file and line, an option of a command line, or `dialogs.NAME`."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class CaseError(UsageError):
    """A case can't be run; `problems` are all that was found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        more = len(self.problems) - 1
        rest = f" And {more} more: `edgewright bench validate` lists all." if more else ""
        super().__init__(f"{self.problems[0]}{rest}")


class Problems:
    """Gathers problems while something is read."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, where: str, text: str) -> None:
        """Note a problem; the same one is noted once."""
        problem = Problem(where, text)
        if problem not in self.found:
            self.found.append(problem)

    def noted(self, where: str) -> Noted:
        """Note what is raised inside and go on; errors that begin with a line of the same file keep it."""
        return Noted(self, where)

    def raise_any(self) -> None:
        """Raise CaseError when there are problems."""
        if self.found:
            raise CaseError(self.found)


@dataclass(frozen=True)
class Noted:
    """A block whose errors become problems."""

    problems: Problems
    where: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, CaseError):
            for problem in error.problems:
                self.problems.add(problem.where, problem.text)
        elif isinstance(error, EdgewrightError):
            text, source = str(error), self.where.partition(":")[0]
            place, colon, rest = text.partition(": ")
            same = bool(colon) and (place == source or place.startswith(f"{source}:"))
            self.problems.add(place if same else self.where, rest if same else text)
        else:
            return False
        return True
