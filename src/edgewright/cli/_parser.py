"""An argument parser whose errors are this package's: one sentence, the nearest valid choice, exit code 2."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NoReturn

from edgewright.errors import UsageError


class Parser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` that raises UsageError instead of printing its usage and leaving."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message.rstrip('.')}; see `{self.prog} --help`.")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all of `arguments`; an unknown flag is answered with the nearest known one.

        The result's `given` has the long flags that are there, whatever their values.
        """
        known = self._flags()
        words = list(takewhile(lambda word: word != "--", arguments))
        for word in words:
            flag = word.partition("=")[0]
            # Words with spaces are values, as argparse sees it.
            if flag.startswith("--") and " " not in word and flag not in known:
                self.error(f"unknown flag {flag}{did_you_mean(flag, known)}")
        namespace, surplus = self.parse_known_args(arguments)
        if surplus:
            kind = "unknown flag" if surplus[0].startswith("-") else "unexpected argument"
            self.error(f"{kind} {surplus[0]!r}")
        namespace.given = {word.partition("=")[0] for word in words} & set(known)
        return namespace

    def _flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add what every verb takes."""
    parser.add_argument("--quiet", action="store_true", help="no plan, progress or notes on stderr; errors only")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean X?)" with the nearest known spelling, or nothing."""
    names = list(known)
    begun = [name for name in names if len(word) > 2 and name.startswith(word)]
    near = begun or difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""


def positive_int(text: str) -> int:
    """Argument type: an integer from 1 upwards."""
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 upwards")
    return value


def seed(text: str) -> int:
    """Argument type: an integer from 0 upwards that decides over random choices."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 upwards")
    return int(text)


def positive_ints(text: str) -> list[int]:
    """Argument type: integers from 1 upwards with commas between."""
    return [positive_int(part.strip()) for part in text.split(",")]


def token_ids(text: str) -> list[int]:
    """Argument type: token ids with commas or spaces between."""
    parts = text.replace(",", " ").split()
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids such as 1,2,3")
    return [int(part) for part in parts]
