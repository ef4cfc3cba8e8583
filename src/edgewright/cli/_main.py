"""The `edgewright` command: finds the verb, runs it, and turns what goes wrong into one sentence and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from edgewright._version import __version__
from edgewright.cli._parser import Parser, add_common, did_you_mean
from edgewright.cli._signals import stop_signals
from edgewright.errors import EdgewrightError, HostError, MissingExtraError, UsageError

#: The verbs, in the order of their use; each is a module of this package.
VERBS = (
    "plan", "deploy", "calibrate", "quantize", "search", "quality", "export", "compile", "verify", "run", "chat",
    "serve", "eval", "inspect", "bench", "profile", "genie-t2t-run", "genie-config", "cache", "targets",
    "doctor",
)  # fmt: skip

EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
_EXIT_CODES = """\
exit codes:
  0    done
  1    verification, evaluation or a run of dialogs failed, or a planned model doesn't fit
  2    the command line is wrong
  3    the input is wrong (checkpoint, recipe, bundle, prompt), or some dialogs of a run failed
  4    the environment can't do it (an extra is missing, no space, no permission)
  70   an error in edgewright itself; --debug or EDGEWRIGHT_DEBUG=1 prints the traceback
  130  interrupted by Ctrl-C or SIGTERM; nothing half-made stays behind
  141  the reader of stdout went away
"""

#: Import names of packages that only an extra installs.
_HOST_PACKAGES = frozenset({"onnx", "onnx_ir", "ml_dtypes", "yaml", "tqdm", "google", "PIL"})
_DEVICE_PACKAGES = frozenset({"numpy", "onnxruntime", "tokenizers", "jinja2"})


class Verb(Protocol):
    """What a verb's module offers."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


class OwnWords(Protocol):
    """What a verb's module offers besides where its words are those of another program: it reads them itself."""

    def parse(self, words: Sequence[str]) -> argparse.Namespace: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; `argv` are the arguments after the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = bool(os.environ.get("EDGEWRIGHT_DEBUG")) or "--debug" in arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a narrow terminal must not stop a text
    with stop_signals() as stop:
        try:
            try:
                code = _dispatch(arguments)
            except SystemExit:  # argparse after --help and --version
                code = 0
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_stdout()
            return EXIT_PIPE
        except KeyboardInterrupt:
            return _fail("interrupted", EXIT_INTERRUPTED, debug)
        except Exception as error:
            if stop.requested:  # what an interrupt became on its way through a library
                return _fail("interrupted", EXIT_INTERRUPTED, debug)
            known = _named(error)
            if known is None:
                kind = f"{type(error).__name__}: {error}".strip(": ")
                text = f"internal error ({kind}): please report it, run with --debug for the traceback."
                return _fail(text, EXIT_INTERNAL, debug)
            return _fail(f"error: {known}", known.exit_code, debug)
    return code


def _dispatch(arguments: Sequence[str]) -> int:
    at = next((i for i, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
    parser = Parser(
        "edgewright",
        "Put a language model or a robot policy on an edge device: from a checkpoint to a verified bundle, and the "
        "runtime that runs it.",
        f"{_verb_list() if _asks_help(arguments[:at]) else ''}\n{_EXIT_CODES}",
    )
    parser.usage = "edgewright [--version] [--help] VERB ..."
    parser.add_argument("--version", action="version", version=f"edgewright {__version__}")
    add_common(parser)
    common = parser.parse(arguments[:at])
    if at == len(arguments):
        raise UsageError(f"Give a verb, one of {', '.join(VERBS)}; see `edgewright --help`.")
    name = arguments[at]
    if name not in VERBS:
        near = did_you_mean(name, VERBS)
        raise UsageError(f"Unknown verb {name!r}{near}; the verbs are {', '.join(VERBS)}.")
    verb, words = _verb(name), arguments[at + 1 :]
    # A verb may have actions, which are modules of their own; the word after the verb is one, or is the verb's own.
    actions = getattr(verb, "ACTIONS", ())
    if words and words[0] in actions:
        name = f"{name} {words[0]}"
        verb, words = _verb(name), words[1:]
    elif words and words[0].isalpha() and not Path(words[0]).exists() and (near := did_you_mean(words[0], actions)):
        raise UsageError(
            f"{words[0]!r} is no action of {name}{near} and no folder; the actions are {', '.join(actions)}."
        )
    args = _parsed(name, verb, words)
    args.quiet = args.quiet or common.quiet
    return verb.run(args)


def _parsed(name: str, verb: Verb, words: Sequence[str]) -> argparse.Namespace:
    if hasattr(verb, "parse"):
        return cast(OwnWords, verb).parse(words)
    parser = Parser(f"edgewright {name}", verb.HELP)
    verb.add_arguments(parser)
    add_common(parser)
    return parser.parse(words)


def _asks_help(words: Sequence[str]) -> bool:
    return "-h" in words or "--help" in words


def _verb_list() -> str:
    lines = [f"  {name:<15}{_verb(name).HELP.splitlines()[0]}" for name in VERBS]
    return "\n".join(["verbs (edgewright VERB --help tells more):", *lines, ""])


def _verb(name: str) -> Verb:
    return cast(Verb, importlib.import_module(f"edgewright.cli.{name.replace('-', '_').replace(' ', '_')}"))


def _named(error: Exception) -> EdgewrightError | None:
    """Return the error to show for what the user can mend, None for a defect of this program."""
    if isinstance(error, EdgewrightError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package in _HOST_PACKAGES:
            return MissingExtraError(
                f"This verb needs the package {package}, which is not installed: pip install 'edgewright[host]'."
            )
        if package in _DEVICE_PACKAGES:
            return MissingExtraError(f"The package {package} is not installed: pip install edgewright.")
    if isinstance(error, MemoryError):
        return HostError("The memory is used up: close other programs, or use a machine with more.")
    if isinstance(error, OSError):
        what = f"{error.filename} can't be used" if error.filename else "The operating system refused"
        return HostError(f"{what} ({error.strerror or error}): check the path, its permissions and the disk.")
    return None


def _fail(text: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    print(f"edgewright: {' '.join(text.split())}", file=sys.stderr, flush=True)
    return code


def _drop_stdout() -> None:
    """Point stdout to nowhere, so that the interpreter's last flush does not complain."""
    try:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)
    except (OSError, ValueError):
        pass
