"""The words before the program's flags: whether a shell elsewhere takes them apart, and how files come back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

from edgewright.bench.case.spec import RunnerSpec
from edgewright.errors import UsageError

#: Where profiles are written on a device that says nothing else.
_ANDROID, _UNIX = "/data/local/tmp", "/tmp"
#: A folder of a device that means the same to every shell and copy program on the way.
_PLAIN = re.compile(r"/[A-Za-z0-9._/+=@-]*", re.ASCII)
#: Options of adb, and letters of ssh's options, that take a value.
_ADB_VALUES = frozenset({"-s", "-t", "-H", "-P", "-L"})
_SSH_VALUES = frozenset("BbcDEeFIiJLlmOopQRSWw")


@dataclass(frozen=True)
class Prefix:
    """A runner's command.

    `adb shell` and `ssh` join their words with blanks and give them to a shell there, so flags are quoted once for each
    of these; the prefix's own words are sent as they are (`adb shell cd /data/genie && ./genie-t2t-run`). Without such
    a shell the words are the program's own arguments, and nothing is quoted. No shell ever runs on this machine.

    Raises UsageError when the runner can't be used as it is written.
    """

    spec: RunnerSpec

    def __post_init__(self) -> None:
        spec = self.spec
        words = (*spec.command, *(spec.pull or ()))
        if not spec.command or not spec.command[0] or any("\0" in word for word in words):
            raise UsageError("The runner has no command: give the words before the program's flags.")
        if spec.shells is not None and spec.shells < 0:
            raise UsageError(f"The runner's shells are {spec.shells}: give how many shells take its words apart.")
        if self.profile_dir is not None and not _PLAIN.fullmatch(self.profile_dir):
            raise UsageError(
                f"The runner's profile_dir {self.profile_dir!r} must be an absolute folder of the device, of letters, "
                "digits and . _ / + = @ -."
            )
        if not self.remote and self.profile_dir is not None:
            raise UsageError("A local program writes its profile into the run folder: leave profile_dir out.")
        if spec.pull is not None and not any("{remote}" in word for word in spec.pull):
            raise UsageError("The runner's pull command doesn't say which file it copies: write {remote} in it.")
        if self.remote and not self._copies:
            raise UsageError(
                "How a profile comes back from this runner isn't known: give its pull command, for example "
                "`adb pull {remote} {local}`."
            )

    @cached_property
    def shells(self) -> int:
        """How many shells on other machines take the words apart."""
        return len(_joins(self.spec.command)) if self.spec.shells is None else self.spec.shells

    @property
    def remote(self) -> bool:
        """Whether the program's files are somewhere else than here."""
        return self.shells > 0 or self.spec.pull is not None

    @property
    def profile_dir(self) -> str | None:
        """The folder there that profiles are written in; None where they are written here."""
        if self.spec.profile_dir is not None:
            return self.spec.profile_dir.rstrip("/") or "/"
        if not self.remote:
            return None
        return _ANDROID if any(_is(word, "adb") for word in self.spec.command) else _UNIX

    def there(self, name: str) -> str | None:
        """Return the path of a profile of that name on the device; None where profiles are written here."""
        return None if self.profile_dir is None else f"{self.profile_dir.rstrip('/')}/{name}"

    def argv(self, flags: Sequence[str]) -> list[str]:
        """Return the whole command of a program's flags, as a list for `exec`."""
        return [*self.spec.command, *(self._quoted(flag) for flag in flags)]

    def pull(self, remote: str, local: str) -> tuple[list[str], bool]:
        """Return the command that copies a file, and whether the file is what it prints."""
        words = [word.replace("{remote}", remote).replace("{local}", local) for word in self._copies]
        return words, not any("{local}" in word for word in self._copies)

    def _quoted(self, word: str) -> str:
        for _ in range(self.shells):
            word = shlex.quote(word)
        return word

    @cached_property
    def _copies(self) -> tuple[str, ...]:
        if self.spec.pull is not None:
            return self.spec.pull
        joins = _joins(self.spec.command)
        if not joins:
            return ()
        reach = self.spec.command[: joins[-1] + 1]
        if len(joins) == 1 and reach[-1] == "shell":
            return (*reach[:-1], "pull", "{remote}", "{local}")
        return (*reach, "cat", "{remote}")


def _is(word: str, program: str) -> bool:
    return PurePath(word.replace("\\", "/")).name.removesuffix(".exe") == program


def _joins(words: Sequence[str]) -> list[int]:
    """Return where the word stands after which each remote shell's command begins."""
    found = []
    for at, word in enumerate(words):
        end = _adb(words, at + 1) if _is(word, "adb") else _ssh(words, at + 1) if _is(word, "ssh") else None
        found += [] if end is None or end in found else [end]
    return found


def _adb(words: Sequence[str], at: int) -> int | None:
    """Return where adb's word for a shell stands."""
    while at < len(words):
        if words[at] in ("shell", "exec-out"):
            return at
        at += 2 if words[at] in _ADB_VALUES else 1
    return None


def _ssh(words: Sequence[str], at: int) -> int | None:
    """Return where ssh's own words end: with its host, or the options or the `--` after it."""
    end = None
    while at < len(words):
        word = words[at]
        if word == "--":
            return at if end is not None else at + 1 if at + 1 < len(words) else None
        if word.startswith("-") and word != "-":
            letters = word[1:]
            value = next((i for i, letter in enumerate(letters) if letter in _SSH_VALUES), None)
            at += 1 if value == len(letters) - 1 else 0
        elif end is not None:
            return end
        if end is not None or not word.startswith("-") or word == "-":
            end = min(at, len(words) - 1)
        at += 1
    return end
