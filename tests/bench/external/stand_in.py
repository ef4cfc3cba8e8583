"""A stand-in for genie-t2t-run: a program of the tests that obeys the real one's observable rules, with no model.

What a dialog does is in the key `stand-in` of its configuration: `tokens` (how many it generates), `step_ms`, and
`fail`: `create`, `context`, `throw`, `false`, `abort`, `segv`, `hang`. The environment's STAND_IN has words about the
process: `torn-profile`, `no-profile`, `parallel-create`, `isolate` (a failing dialog of several doesn't end the
others), `old-figures` (prints those of the first versions), `no-zero` (a profile without its start).
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

WORDS = frozenset(os.environ.get("STAND_IN", "").split(","))
USAGE = "Usage: genie-t2t-run [options]"
#: Options with a value, by the name that their value is kept under.
VALUES = {
    "-c": "config", "--config": "config", "-p": "prompt", "--prompt": "prompt", "--prompt_file": "prompt_file",
    "-e": "embed", "--embedding_file": "embed", "-t": "table", "--embedding_table": "table", "-tok": "tokens_file",
    "--tokens_file": "tokens_file", "--log": "log", "--profile": "profile", "--priority": "priority",
}  # fmt: skip
CONCURRENT = {
    "--iterations": "iterations", "--concurrent-config": "configs", "--concurrent-embed": "inputs",
    "--concurrent-prompt_file": "inputs", "--concurrent-stride": "stride", "--concurrent-priorities": "priorities",
}  # fmt: skip
TYPES = ("int8", "uint8", "int16", "uint16")
SPEAK = threading.Lock()


def fail(text: str, code: int = 1) -> NoReturn:
    """End as the program does on a wrong command line, or on a question for help."""
    print(text, flush=True)
    os._exit(code)


def microseconds() -> int:
    return time.monotonic_ns() // 1000


def embedding_argument(text: str) -> tuple[str, str]:
    """Return path and type of an embedding argument; empty fields are dropped, trailing junk of numbers is taken."""
    fields = [field for field in text.split(",") if field]
    if len(fields) not in (1, 4):
        fail(f"ERROR: Invalid embedding argument: {text}")
    if len(fields) == 1:
        return fields[0], "float32"
    if fields[1] not in TYPES:
        fail(f"ERROR: invalid datatype {fields[1]}")
    if not re.match(r"[+-]?(\d|\.\d|inf|nan)", fields[2]) or not re.match(r"[+-]?\d", fields[3]):
        fail(f"ERROR: Invalid quantization encodings: {{{fields[2]},{fields[3]}}}")
    return fields[0], fields[1]


def weights(text: str) -> list[tuple[int, int]]:
    """Return (time, weight) of a timeline."""
    if not re.fullmatch(r"\d+:\d+(,\d+:\d+)*", text):
        fail(f"ERROR: Invalid stride timeline: {text}")
    return [(int(time_ms), int(weight)) for weight, time_ms in (part.split(":") for part in text.split(","))]


def parse(words: list[str]) -> dict[str, Any]:
    """Read the command line in its order; the last of a repeated option counts."""
    options: dict[str, Any] = {"configs": [], "inputs": [], "timelines": {}, "concurrent": False}
    if not words or set(words) & {"-h", "--help"}:
        fail(USAGE, 0)
    while words:
        word = words.pop(0)
        concurrent = options["concurrent"]
        timeline = re.fullmatch(r"--concurrent-stride(\d+)", word)
        if word == "--concurrent":
            options["concurrent"] = True
            continue
        if word not in VALUES and not (concurrent and (word in CONCURRENT or timeline)):
            fail(f"Unknown option: {word}\n{USAGE}")
        if not words:
            fail(f"ERROR: Invalid parameter for argument: {word}\n{USAGE}")
        value = words.pop(0)
        if timeline:
            options["timelines"][int(timeline[1])] = weights(value)
        elif word in CONCURRENT:
            key = CONCURRENT[word]
            options[key] = [*options[key], (word, value)] if key in ("configs", "inputs") else value
        else:
            options[VALUES[word]] = value
            at_once(VALUES[word], value)
    return options


def at_once(key: str, value: str) -> None:
    """Do what is done while the command line is read."""
    if key == "profile" and Path(value).exists():
        fail(f"ERROR: Invalid --profile argument. Output file {value} already exists.")
    if key in ("embed", "table") and not Path(embedding_argument(value)[0]).is_file():
        fail(f"ERROR: Invalid embedding argument: {value}")
    if key == "log" and value not in ("error", "warn", "info", "verbose"):
        fail(f"ERROR: Invalid --log argument: {value}")


def validate(options: dict[str, Any]) -> None:
    """Check what only the whole command line can say, in the program's order."""
    text = [key for key in ("prompt", "prompt_file", "tokens_file") if key in options]
    fed = [value for word, value in options["inputs"] if word == "--concurrent-embed"]
    if "embed" in options and text:
        fail("ERROR: an embedding file and a prompt exclude each other.")
    if "table" in options and "embed" not in options and not fed:
        fail("ERROR:: a table needs an embedding file.")
    if "embed" not in options and not text:
        fail("ERROR: there is neither a prompt nor a prompt file.")
    if "prompt" in options and "prompt_file" in options:
        fail("ERROR: a prompt and a prompt file exclude each other.")
    for value in fed:
        if not Path(embedding_argument(value)[0]).is_file():
            fail(f"ERROR: Invalid embedding argument: {value}")
    if len(options["configs"]) != len(options["inputs"]):
        fail("ERROR: the number of concurrent configs and of inputs differ.")
    if "stride" in options and "priorities" in options:
        fail("ERROR: stride and priorities exclude each other.")


class Failed(Exception):  # noqa: N818
    """An exception of the run: its text goes to stderr."""


class Dialog:
    """A dialog: its configuration, its input, the figures of its queries."""

    def __init__(self, config: str, kind: str, value: str, table: str | None) -> None:
        try:
            data = json.loads(Path(config).read_text())
        except OSError:
            raise Failed(f"Failed to create the dialog config of {config}") from None
        self.kind, self.value, self.table = kind, value, table
        self.dialog, self.own = data["dialog"], data.get("stand-in", {})
        self.name, self.events = "", []  # type: ignore[var-annotated]
        self.load_us = 1000

    def create(self, number: int) -> None:
        """Create it; the library gives the names, in the order of creation."""
        start = microseconds()
        if self.own.get("fail") == "create":
            raise Failed("Failed to create the dialog.")
        time.sleep(self.load_us / 1e6)
        self.name = f"dialog{number}"
        self.event("GenieDialog_create", start, {"init-time": (microseconds() - start, "us")})

    def event(self, kind: str, start: int, figures: dict[str, tuple[float, str]]) -> None:
        stop = microseconds()
        members = {name: {"value": value, "unit": unit} for name, (value, unit) in figures.items()}
        self.events.append({"type": kind, "duration": stop - start, "start": start, "stop": stop, **members})

    def query(self) -> None:
        """Ask once."""
        how = self.own.get("fail")
        start = microseconds()
        say(self.heading())
        if how == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "hang":
            time.sleep(600)
        self.check()
        step = self.own.get("step_ms", 1) / 1e3
        count = min(self.own.get("tokens", 4), max(1, self.dialog.get("max-num-tokens", 2**32 - 1)))
        if self.kind == "embed" and self.table is None and self.dialog.get("embedding", {}).get("type") != "lut":
            count = 1
        time.sleep(step)
        first = microseconds()
        for index in range(count):
            if how == "context" and index == 2:
                raise Failed("Failed to query the dialog: status 4 (context limit exceeded)")
            if how == "throw" and index == 1:
                raise Failed("Failed to query the dialog.")
            say(("[BEGIN]: " if index == 0 else "") + f" w{index}")
            time.sleep(step)
        say("[END]\n")
        if how == "abort":
            say("Query successfully aborted\n" if self.kind != "embed" else "Query Succesfully aborted\n")
        spent = microseconds() - first
        self.event("GenieDialog_query", start, {} if how == "false" else self.figures(count, first - start, spent))

    def figures(self, count: int, first: int, spent: int) -> dict[str, tuple[float, str]]:
        prompt = self.prompt_tokens()
        rate = 0.0 if not count else 1e6 / (spent // count) if spent // count else 1.0
        if "old-figures" in WORDS:
            say(f"Prompt processing: {first} us\nToken generation: {spent} us, {rate} tokens/s\n")
        return {
            "num-prompt-tokens": (prompt, ""),
            "prompt-processing-rate": (1e6 / max(1, first // prompt), "toks/sec"),
            "time-to-first-token": (first if count else 0, "us"),
            "num-generated-tokens": (count, ""),
            "token-generation-rate": (rate, "toks/sec"),
            "token-generation-time": (spent if count else 0, "us"),
        }

    def prompt_tokens(self) -> int:
        if self.kind == "embed":
            path, kind = embedding_argument(self.value)
            return max(1, Path(path).stat().st_size // (self.row() * {"8": 1, "6": 2, "2": 4}[kind[-1]]))
        text = self.value if self.kind == "prompt" else Path(self.value).read_text()
        return max(1, len(text.split()))

    def row(self) -> int:
        return int(self.dialog.get("embedding", {}).get("size", 8))

    def heading(self) -> str:
        if self.kind == "embed":
            return f"Embedding file size: {Path(embedding_argument(self.value)[0]).stat().st_size} bytes\n"
        text = self.value if self.kind == "prompt" else Path(self.value).read_text()
        return f"[PROMPT TOKENS]: {text}\n" if self.kind == "tokens" else f"[PROMPT]: {text}\n"

    def check(self) -> None:
        """Raise what the program finds out only when the model is loaded."""
        if self.kind == "prompt" and not self.value:
            raise Failed("Failed to query the dialog: status -2")
        if self.kind != "embed":
            return
        path, kind = embedding_argument(self.value)
        if self.table is not None:
            source = embedding_argument(self.table)[1]
            if (source == "float32") != (kind == "float32") or source.startswith("u") != kind.startswith("u"):
                raise Failed(f"Unsupported LUT requantization: {source} -> {kind}")
        width = {"8": 1, "6": 2, "2": 4}[kind[-1]]
        if Path(path).stat().st_size % (self.row() * width):
            raise Failed("Failed to query the dialog: status -6")


def say(text: str) -> None:
    with SPEAK:
        sys.stdout.write(text)
        sys.stdout.flush()


def dialogs_of(options: dict[str, Any]) -> list[Dialog]:
    table = options.get("table")
    if "embed" in options:
        first = Dialog(options["config"], "embed", options["embed"], table)
    elif "tokens_file" in options:
        first = Dialog(options["config"], "tokens", options["tokens_file"], table)
    elif "prompt_file" in options:
        first = Dialog(options["config"], "file", options["prompt_file"], table)
    else:
        first = Dialog(options["config"], "prompt", options["prompt"], table)
    found = [first]
    for (_, config), (word, value) in zip(options["configs"], options["inputs"], strict=True):
        found.append(Dialog(config, "embed" if word == "--concurrent-embed" else "file", value, table))
    return found


def create_all(dialogs: list[Dialog]) -> None:
    if "parallel-create" not in WORDS:
        for number, dialog in enumerate(dialogs):
            dialog.create(number)
        return
    for dialog in dialogs:
        dialog.load_us = 50_000
    threads = [threading.Thread(target=dialog.create, args=(len(dialogs) - 1 - n,)) for n, dialog in enumerate(dialogs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ask_all(options: dict[str, Any], dialogs: list[Dialog]) -> list[str]:
    """Ask every dialog at once, each several times, and return what went wrong; times go to stderr."""
    wrong: list[str] = []

    def follow(dialog: Dialog) -> None:
        for iteration in range(int(options.get("iterations", 1))):
            begin = microseconds()
            try:
                dialog.query()
            except Failed as failure:
                wrong.append(str(failure))
                return
            sys.stderr.write(f"{dialog.name} iteration {iteration}: {microseconds() - begin} us\n")

    threads = [threading.Thread(target=follow, args=(dialog,)) for dialog in dialogs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def write_profile(path: str, dialogs: list[Dialog], zero: int) -> None:
    if "no-profile" in WORDS:
        return
    version = {"major": 0, "minor": 1, "patch": 0}
    data = {
        "header": {"header_version": version, "version": version, "artifact_type": "GENIE_PROFILE"},
        "metadata": {} if "no-zero" in WORDS else {"timestamp": zero},
        "components": [
            {"name": dialog.name, "type": "dialog", "events": dialog.events}
            for dialog in sorted(dialogs, key=lambda dialog: dialog.name)
        ],
    }
    text = json.dumps(data, indent=2)
    Path(path).write_text(text[: len(text) // 2] if "torn-profile" in WORDS else text)


def main() -> int:
    options = parse(sys.argv[1:])
    validate(options)
    print("Using libGenie.so version 1.13.0", flush=True)
    zero = microseconds()
    try:
        if "config" not in options:
            raise Failed("Failed to create the dialog config.")
        dialogs = dialogs_of(options)
        create_all(dialogs)
        wrong = ask_all(options, dialogs) if options["concurrent"] else []
        if not options["concurrent"]:
            dialogs[0].query()
        if wrong and ("isolate" not in WORDS or len(wrong) == len(dialogs)):
            raise Failed(wrong[0])
        if any(dialog.own.get("fail") == "abort" for dialog in dialogs):
            raise Failed("Failed to query the dialog.")
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    if "profile" in options:
        write_profile(options["profile"], dialogs, zero)
    return 0


if __name__ == "__main__":
    sys.exit(main())
