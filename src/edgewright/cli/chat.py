"""`edgewright chat`: a dialog that keeps what the model has read already."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from edgewright.cli._load import load, warn_respelled
from edgewright.cli._output import note
from edgewright.cli._sampling import add_generation, sampling_of
from edgewright.errors import ContextOverflowError

if TYPE_CHECKING:
    from edgewright.runtime.llm import LLM
    from edgewright.runtime.sampling import SamplingParams

NAME = "chat"
HELP = "Talk with a bundle; each turn feeds only what is new."
_COMMANDS = "/reset starts over, /quit ends (so does Ctrl-D), Ctrl-C stops an answer."
#: Tokens fed at once, so that Ctrl-C is heard during a long prefill.
_CHUNK = 256
#: Tokens that go with the start of the answer: the decoder of the text looks back at most this far.
_TAIL = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_generation(parser, max_tokens=1024)


def run(args: argparse.Namespace) -> int:
    """Chat until the input ends."""

    sampling = sampling_of(args)
    llm = load(args)
    _ = llm.chat_template  # a bundle without one is refused before the first turn
    dialog = Dialog(llm, sampling, system=args.system, max_tokens=args.max_tokens, stop=args.stop)
    person = sys.stdin.isatty()
    if person:
        note(f"{llm.manifest.source['name']}, {llm.max_context} tokens of context. {_COMMANDS}", quiet=args.quiet)
    with _StopKey() as key:
        for line in _lines(person):
            if line.startswith("/"):
                if line == "/quit":
                    break
                _command(line, dialog)
            elif line:
                _turn(dialog, line, key, person)
                warn_respelled(llm, dialog.news(), quiet=args.quiet)
    return 0


class Dialog:
    """Messages, and a session that holds the tokens of their beginning."""

    def __init__(
        self, llm: LLM, sampling: SamplingParams, *, system: str | None, max_tokens: int, stop: Sequence[str]
    ) -> None:
        self._llm = llm
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._stop = stop
        self._first = [{"role": "system", "content": system}] if system is not None else []
        self._session = llm.session()
        self._held: list[int] = []  # begins with what the session holds
        self._respelled: dict[int, int] = {}
        self._told: set[int] = set()
        self.fed = 0
        self.reset()

    def reset(self) -> None:
        """Forget the dialog; what the session holds stays useful for the system message."""
        self.messages = list(self._first)

    def news(self) -> dict[int, int]:
        """Return how often each token that was not told of before was spelled in others in the last turn."""
        news = {token: count for token, count in self._respelled.items() if token not in self._told}
        self._told |= news.keys()
        return news

    @property
    def full(self) -> bool:
        """Whether the context has no room left."""
        return self._session.length >= self._llm.max_context

    def answer(self, text: str, stopped: _StopKey) -> Iterator[str]:
        """Add the user's message, then yield the answer and keep it, as far as it came.

        Raises ContextOverflowError, with the message taken back, when the dialog does not fit.
        """
        self.messages.append({"role": "user", "content": text})
        said: list[str] = []
        try:
            for piece in self._pieces(stopped):
                said.append(piece)
                yield piece
        finally:
            if said:
                self.messages.append({"role": "assistant", "content": "".join(said)})
            else:
                self.messages.pop()

    def _pieces(self, stopped: _StopKey) -> Iterator[str]:
        from edgewright.runtime.spelling import respelled

        ids = self._llm.encode_chat(self.messages)
        self._respelled = respelled(ids)
        if len(ids) > self._llm.max_context:
            raise ContextOverflowError(
                f"The dialog has {len(ids)} tokens and the context holds {self._llm.max_context}: start over with "
                "/reset, or deploy with a larger --max-context."
            )
        # The last token is always fed, since its logits are wanted.
        common = min(_common(self._held[: self._session.length], ids), len(ids) - 1)
        common = self._session.rewind(common)
        self._held = ids
        self.fed = len(ids) - common
        while len(ids) - self._session.length > _TAIL and not stopped:
            at = self._session.length
            self._session.append(ids[at : min(at + _CHUNK, len(ids) - _TAIL)], logits="none")
        if stopped:
            return
        generation = self._llm.generate(
            ids[self._session.length :],
            max_tokens=self._max_tokens,
            sampling=self._sampling,
            stop=self._stop,
            session=self._session,
            history=ids[: self._session.length],
        )
        try:
            for piece in generation:
                yield piece
                if stopped:
                    break
        finally:
            self._held = [*ids, *generation.tokens]


def _common(held: Sequence[int], ids: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    return next((i for i, (a, b) in enumerate(zip(held, ids, strict=False)) if a != b), min(len(held), len(ids)))


def _turn(dialog: Dialog, line: str, key: _StopKey, person: bool) -> None:
    key.clear()
    try:
        for piece in dialog.answer(line, key):
            sys.stdout.write(piece)
            sys.stdout.flush()
    except ContextOverflowError as error:
        if not person:
            raise
        note(f"edgewright: {error}")
        return
    finally:
        key.listen = False
    print(flush=True)
    if key:
        note("(stopped)")
    elif dialog.full:
        note("(the context is full: start over with /reset, or deploy with a larger --max-context)")


def _command(line: str, dialog: Dialog) -> None:
    if line == "/reset":
        dialog.reset()
        note("(a new dialog)")
    elif line == "/help":
        note(_COMMANDS)
    else:
        note(f"unknown command {line.split()[0]}: {_COMMANDS}")


def _lines(person: bool) -> Iterator[str]:
    """Yield the user's lines; a prompt glyph is shown to people only."""
    if not person:
        yield from (line.strip() for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() editing and history
    while True:
        try:
            yield input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            return


class _StopKey:
    """Ctrl-C during an answer: the first press is only noted (this object turns true), the next one raises."""

    def __init__(self) -> None:
        self._pressed = False
        self.listen = False

    def clear(self) -> None:
        """Begin an answer."""
        self._pressed, self.listen = False, True

    def __bool__(self) -> bool:
        return self._pressed

    def _press(self, number: int, frame: FrameType | None) -> None:
        if not self.listen or self._pressed:
            raise KeyboardInterrupt
        self._pressed = True

    def __enter__(self) -> _StopKey:
        try:
            self._before = signal.signal(signal.SIGINT, self._press)
        except ValueError:
            self._before = None  # not the main thread
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
