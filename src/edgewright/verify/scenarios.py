"""Scripts that drive an engine the ways a runtime does; each gives the logits to compare, and their tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgewright.runtime.session import FIRST_CAPACITY, Session

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Scenario:
    """`tokens` is what the session holds at the end; `run` gives logits of its positions from `first` on."""

    name: str
    tokens: Tokens
    first: int
    run: Callable[[Session], Logits]


def scenarios(tokens: Tokens, max_context: int) -> Iterator[Scenario]:
    """Yield prefill, chunked prefill, decode across the first cache growth, and a second turn after a truncation.

    Lengths shrink with a small context.
    """
    grown = min(FIRST_CAPACITY + 16, max_context)
    text = tokens[:grown]
    n = len(text)
    prompt = max(1, n - 32)
    yield Scenario("prefill", text[:prompt], 0, lambda s: s.append(text[:prompt], logits="all"))

    cuts = sorted({0, min(1, prompt), min(8, prompt), prompt * 2 // 3, prompt})

    def chunked(session: Session) -> Logits:
        parts = [session.append(text[a:b], logits="all") for a, b in itertools.pairwise(cuts)]
        return np.concatenate(parts)

    yield Scenario("chunked prefill", text[:prompt], 0, chunked)

    def decode(session: Session) -> Logits:
        session.append(text[:prompt], logits="none")
        return np.concatenate([session.append(text[i : i + 1]) for i in range(prompt, n)])

    if prompt < n:
        yield Scenario("decode", text, prompt, decode)

    first, kept = min(24, n - 1), min(16, n - 1)
    second = tokens[max(0, len(tokens) - 24) :][: max_context - kept]

    def two_turns(session: Session) -> Logits:
        session.append(text[:first], logits="none")
        session.truncate(kept)
        head = session.append(second[:-4], logits="all") if len(second) > 4 else None
        rest = [session.append(second[i : i + 1]) for i in range(max(0, len(second) - 4), len(second))]
        return np.concatenate([head, *rest] if head is not None else rest)

    if kept > 0:
        yield Scenario("two turns", np.concatenate([text[:kept], second]), kept, two_turns)
