"""How an execution of the program ended: a named state, and the sentence that says why."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgewright.bench.external.processes import NOT_ENDED, STDERR, STDOUT, Ended
from edgewright.bench.external.pull import Pulled
from edgewright.errors import GenieError
from edgewright.genie import Profile, read_profile

State = Literal[
    "complete", "no-program", "connection", "usage", "profile-exists", "timeout", "interrupted",
    "fail-fast", "signal", "context-exceeded", "aborted", "exit-code", "no-profile", "torn-profile", "pull-failed",
]  # fmt: skip

#: Of each output, how much of its start and of its end is looked at.
_LOOK_BYTES = 64 << 10
_LONGEST = 300
_EXISTS = re.compile(r"Output file .* already exists", re.IGNORECASE)
_USAGE = re.compile(r"^(?:ERROR::? |Unknown option: ).*", re.MULTILINE)
_CONNECTION = re.compile(
    r"^.*(?:no devices/emulators found|device '?\S*'? ?not found|device (?:offline|unauthorized)|Connection (?:refused|"
    r"timed out|closed|reset)|Could not resolve hostname|No route to host|Permission denied \().*",
    re.MULTILINE | re.IGNORECASE,
)
#: Status 4 is called a warning, but the query has failed by it.
_CONTEXT = re.compile(r"status:? ?4\b|CONTEXT_EXCEEDED|context\W+(?:\w+\W+){0,3}exceeded", re.IGNORECASE)
_ABORTED = re.compile(r"Query succ?ess?fully aborted", re.IGNORECASE)
#: After this line the command line was taken, and what looks like a refusal is a model's text.
_TAKEN = "Using libGenie"
_WORDS: tuple[tuple[re.Pattern[str], State, str], ...] = (
    (_EXISTS, "profile-exists", "Its profile is there already, so the program did nothing: pass --overwrite."),
    (_USAGE, "usage", "The program refused its command line"),
    (_CONNECTION, "connection", "The device can't be reached"),
    (_CONTEXT, "context-exceeded", "The dialog's context was exceeded (status 4), so the program gave up"),
    (_ABORTED, "aborted", "The query was aborted"),
)


@dataclass(frozen=True)
class Verdict:
    """The state of an execution; `error` is None where it is complete. `profile` is there whatever the state."""

    state: State
    error: str | None = None
    profile: Profile | None = None


def judge(ended: Ended, folder: Path, pulled: tuple[Pulled, str], *, shells: int, timeout_s: float | None) -> Verdict:
    """Return how an execution ended whose output is in `folder`, and its profile where one came back whole."""
    profile, torn = None, None
    if pulled[0] == "there":
        try:
            profile = read_profile(folder / "profile.json")
        except GenieError as error:
            torn = str(error)
    heard = _heard(folder)
    state, text = _state(ended, heard, shells, timeout_s)
    if state == "complete" and profile is None:
        # Where exit codes are lost on the way, what the program said is all there is.
        spoken = _spoken(heard) if shells and pulled[0] == "absent" else None
        state, text = spoken or _without_profile(pulled, torn)
    return Verdict(state, None if state == "complete" else text, profile)


def _without_profile(pulled: tuple[Pulled, str], torn: str | None) -> tuple[State, str]:
    if torn is not None:
        return "torn-profile", f"The program's profile is not whole: {torn}"
    if pulled[0] == "failed":
        return "pull-failed", f"The program ended well, but its profile could not be copied here: {pulled[1]}."
    return "no-profile", (
        "The program said it ended well and wrote no profile: its exit code may be lost on the way (old `adb shell`), "
        f"so look into {STDOUT} and {STDERR}."
    )


def _state(ended: Ended, heard: str, shells: int, timeout_s: float | None) -> tuple[State, str]:
    """Return what the end of the process and its words say."""
    if ended.stopped is not None:
        return ended.stopped, _stopped(ended, shells, timeout_s)
    if ended.returncode is None:
        return "no-program", f"The runner's command can't be started: {ended.error}."
    code = ended.returncode
    if code == 0:
        return "complete", ""
    number = -code if code < 0 else code - 128 if shells and code > 128 else 0
    if number in {one.value for one in signal.Signals} and code != 255:
        return "signal", f"The program was ended by {signal.Signals(number).name}: {_last_line(heard)}."
    spoken = _spoken(heard)
    if shells and code in (126, 127):
        return "no-program", f"The program can't be started there (exit code {code}): {_last_line(heard)}."
    if spoken is not None:
        return spoken
    if shells and code == 255:
        return "connection", f"The device can't be reached: {_last_line(heard)}."
    return "exit-code", f"The program failed with exit code {code}: {_last_line(heard)}."


def _stopped(ended: Ended, shells: int, timeout_s: float | None) -> str:
    still = " It may still be running on the device." if shells and ended.returncode is not None else ""
    if ended.error == NOT_ENDED:
        return f"The program had to be stopped ({ended.stopped}) and goes on: its user may be another one, so end it."
    if ended.stopped == "timeout":
        return f"The program was stopped after {timeout_s:g} s, the run's timeout_s.{still}"
    why = "the run was interrupted" if ended.stopped == "interrupted" else "another dialog failed (on_error: fail-fast)"
    what = "was not started" if ended.returncode is None else "was stopped"
    return f"The program {what}, because {why}.{still}"


def _spoken(heard: str) -> tuple[State, str] | None:
    """Return what the program's own words tell, None where they tell nothing."""
    for pattern, state, text in _WORDS[2:] if _TAKEN in heard else _WORDS:
        match = pattern.search(heard)
        if match:
            said = "" if text.endswith(".") else f": {_cut(match[0])}."
            return state, f"{text}{said}"
    return None


def _heard(folder: Path) -> str:
    """Return the beginnings and ends of both outputs; answers may be long."""
    parts = []
    for name in (STDOUT, STDERR):
        try:
            with (folder / name).open("rb") as file:
                data = file.read(_LOOK_BYTES)
                size = file.seek(0, 2)
                if size > len(data):
                    file.seek(max(len(data), size - _LOOK_BYTES))
                    data += b"\n" + file.read(_LOOK_BYTES)
        except OSError:
            continue
        parts.append(data.decode(errors="replace").replace("\r\n", "\n"))
    return "\n".join(parts)


def _last_line(heard: str) -> str:
    lines = [line for line in heard.splitlines() if line.strip()]
    return _cut(lines[-1]) if lines else "it said nothing"


def _cut(text: str) -> str:
    text = "".join(letter if letter.isprintable() else " " for letter in text.strip()).rstrip(".")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
