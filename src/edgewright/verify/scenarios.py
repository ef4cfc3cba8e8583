"""Scripts that drive an engine the ways a runtime does, as data: what is fed in which pieces, and what is compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edgewright.runtime.inputs import Logits as Wanted
from edgewright.runtime.session import FIRST_CAPACITY, Session

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]

#: Sequences of the scenario `batch`, and how many tokens less each has than the one before.
BATCH, SHORTER = 3, 5


@dataclass(frozen=True)
class Step:
    """Feed each sequence its tokens `[n]` and compare the logits of all of them, or of none; first cut back to
    `length` where one is given."""

    rows: tuple[Tokens, ...]
    compared: bool
    length: int | None = None

    def feed(self, session: Session) -> list[Logits]:
        """Drive a session; returns each sequence's logits `[rows, vocab]`, without rows where none are wanted."""
        if self.length is not None:
            session.truncate(self.length)
        single = all(len(row) == 1 for row in self.rows)
        wanted: Wanted = "none" if not self.compared else "last" if single else "all"
        if len(self.rows) == 1:
            return [session.append(self.rows[0], logits=wanted)]
        if single:
            return list(session.append(np.stack(self.rows), logits=wanted))
        return session.append_rows(self.rows, logits=wanted)


@dataclass(frozen=True)
class Scenario:
    """`sequences` are the tokens the session holds at the end; logits are compared from position `first` on."""

    name: str
    sequences: tuple[Tokens, ...]
    first: int
    steps: tuple[Step, ...]

    @property
    def positions(self) -> list[int]:
        """The position of each row of logits, one sequence after the other."""
        return [i for tokens in self.sequences for i in range(self.first, len(tokens))]

    def run(self, session: Session) -> Logits:
        """Drive a session; returns logits `[rows, vocab]`, one sequence after the other."""
        parts = [step.feed(session) for step in self.steps]
        return np.concatenate([row for sequence in zip(*parts, strict=True) for row in sequence])

    def brief(self) -> Scenario:
        """Return the scenario with the first of its steps of one token only, for looking at every kind of call."""
        single = [all(len(row) == 1 for row in step.rows) for step in self.steps]
        kept = [step for i, step in enumerate(self.steps) if not (single[i] and any(single[:i]))]
        return replace(self, steps=tuple(kept))

    def of(self, change: Callable[[Tokens], Tokens]) -> Scenario:
        """Return the scenario with other ids in the place of its own."""
        steps = tuple(replace(step, rows=tuple(map(change, step.rows))) for step in self.steps)
        return replace(self, sequences=tuple(map(change, self.sequences)), steps=steps)

    def wanted(self, logits_of: Callable[[Tokens], Logits]) -> Logits:
        """Return what `run` must return, of a function that gives the logits of all tokens of a text."""
        held = [row[:0] for row in self.sequences]
        parts: list[list[Logits]] = [[] for _ in held]
        for step in self.steps:
            for index, row in enumerate(step.rows):
                before = held[index] if step.length is None else held[index][: step.length]
                held[index] = np.concatenate([before, row])
                if step.compared:
                    parts[index].append(logits_of(held[index])[len(before) :])
        return np.concatenate([part for sequence in parts for part in sequence])


def scenarios(tokens: Tokens, max_context: int, *, max_batch: int = 1, cut_back: bool = True) -> Iterator[Scenario]:
    """Yield prefill, chunked prefill, decode across the first cache growth, a second turn, and a batch.

    Lengths shrink with a small context. The second turn follows a truncation where the model can cut back; the
    sequences of the batch have different lengths.
    """
    grown = min(FIRST_CAPACITY + 16, max_context)
    text = tokens[:grown]
    n = len(text)
    prompt = max(1, n - 32)
    yield Scenario("prefill", (text[:prompt],), 0, (_step(text[:prompt]),))

    cuts = sorted({0, min(1, prompt), min(8, prompt), prompt * 2 // 3, prompt})
    pieces = tuple(_step(text[a:b]) for a, b in itertools.pairwise(cuts))
    yield Scenario("chunked prefill", (text[:prompt],), 0, pieces)

    if prompt < n:
        singles = [_step(text[i : i + 1]) for i in range(prompt, n)]
        yield Scenario("decode", (text,), prompt, (_step(text[:prompt], compared=False), *singles))

    first = min(24, n - 1)
    kept = min(16, n - 1) if cut_back else first
    second = tokens[max(0, len(tokens) - 24) :][: max_context - kept]
    if kept > 0 and len(second):
        head = max(0, len(second) - 4)
        turn = [second[:head]] if head else []
        turn += [second[i : i + 1] for i in range(head, len(second))]
        cut = _step(turn[0], length=kept if cut_back else None)
        steps = (_step(text[:first], compared=False), cut, *map(_step, turn[1:]))
        yield Scenario("two turns", (np.concatenate([text[:kept], second]),), kept, steps)

    longest = min(20, n - 4)
    if max_batch >= BATCH and longest > SHORTER * (BATCH - 1):
        rows = [np.roll(tokens, -17 * b)[: longest + 4 - SHORTER * b] for b in range(BATCH)]
        last = [Step(tuple(row[len(row) - k : len(row) - k + 1] for row in rows), True) for k in (4, 3, 2, 1)]
        yield Scenario("batch", tuple(rows), 0, (Step(tuple(row[:-4] for row in rows), True), *last))


def _step(tokens: Tokens, *, compared: bool = True, length: int | None = None) -> Step:
    return Step((tokens,), compared, length)
