"""Key figures of a query: as the library counts them, biases included, and as they are.

The library's figures have three peculiarities. The generated tokens include the first, which the prefill made, while
their time does not. Rates are 1e6 over whole microseconds a token (rounded down; 1.0 where that is 0). The time of
generation ends with the last callback, so it holds what the program does there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from edgewright.errors import GenieError

#: Names of figures with their values and units.
Kpis = Mapping[str, tuple[float, str]]

PROMPT_TOKENS = "num-prompt-tokens"
PROMPT_RATE = "prompt-processing-rate"
FIRST_TOKEN = "time-to-first-token"
GENERATED_TOKENS = "num-generated-tokens"
GENERATION_RATE = "token-generation-rate"
GENERATION_TIME = "token-generation-time"
MICROSECONDS, RATE, COUNT = "us", "toks/sec", ""


def genie_rate(duration_us: int, tokens: int) -> float:
    """Return tokens a second as the library computes them, 0.0 without tokens."""
    if tokens <= 0:
        return 0.0
    each = duration_us // tokens
    return 1e6 / each if each else 1.0


def genie_kpis(
    prompt_tokens: int, start_ns: int, token_ns: Sequence[int], end_ns: int | None = None
) -> dict[str, tuple[float, str]]:
    """Return the figures of a query by the library's own definitions.

    `start_ns` is when the prompt's tokens were known, `token_ns` when each generated token was, `end_ns` when the last
    callback returned (the last token's time where it isn't given). Raises GenieError for times that go back.
    """
    _check(start_ns, token_ns)
    if not token_ns:
        return {PROMPT_TOKENS: (prompt_tokens, COUNT), GENERATED_TOKENS: (0, COUNT)}
    last = token_ns[-1] if end_ns is None else max(end_ns, token_ns[-1])
    first_us, generation_us = (token_ns[0] - start_ns) // 1000, (last - token_ns[0]) // 1000
    return {
        PROMPT_TOKENS: (prompt_tokens, COUNT),
        PROMPT_RATE: (genie_rate(first_us, prompt_tokens), RATE),
        FIRST_TOKEN: (first_us, MICROSECONDS),
        GENERATED_TOKENS: (len(token_ns), COUNT),
        GENERATION_RATE: (genie_rate(generation_us, len(token_ns)), RATE),
        GENERATION_TIME: (generation_us, MICROSECONDS),
    }


def measured_kpis(prompt_tokens: int, start_ns: int, token_ns: Sequence[int]) -> dict[str, tuple[float, str]]:
    """Return the same figures from timestamps, without the biases: n tokens are n - 1 steps, nothing is rounded.

    A rate that has no step to be measured by is left out. Raises GenieError for times that go back.
    """
    _check(start_ns, token_ns)
    found: dict[str, tuple[float, str]] = {
        PROMPT_TOKENS: (prompt_tokens, COUNT),
        GENERATED_TOKENS: (len(token_ns), COUNT),
    }
    if token_ns:
        found |= _measured(
            prompt_tokens, (token_ns[0] - start_ns) / 1e3, len(token_ns), (token_ns[-1] - token_ns[0]) / 1e3
        )
    return found


def recomputed(kpis: Kpis) -> dict[str, tuple[float, str]]:
    """Return what the figures of an event say without the library's rounding and its count of steps.

    Only what can be computed from them is there; the callbacks' time stays in.
    """
    found = {
        name: kpis[name] for name in (PROMPT_TOKENS, GENERATED_TOKENS, FIRST_TOKEN, GENERATION_TIME) if name in kpis
    }
    return found | _measured(
        *(
            kpis[name][0] if name in kpis else math.nan
            for name in (PROMPT_TOKENS, FIRST_TOKEN, GENERATED_TOKENS, GENERATION_TIME)
        )
    )


def _measured(prompt: float, first_us: float, generated: float, generation_us: float) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    for name, value, unit in (
        (FIRST_TOKEN, first_us, MICROSECONDS),
        (GENERATION_TIME, generation_us, MICROSECONDS),
        (PROMPT_RATE, _rate(prompt, first_us), RATE),
        (GENERATION_RATE, _rate(generated - 1, generation_us), RATE),
    ):
        if math.isfinite(value):
            found[name] = value, unit
    return found


def _rate(count: float, duration_us: float) -> float:
    return count * 1e6 / duration_us if duration_us > 0 and count > 0 else math.nan


def _check(start_ns: int, token_ns: Sequence[int]) -> None:
    times = [start_ns, *token_ns]
    if any(later < earlier for earlier, later in itertools.pairwise(times)):
        raise GenieError("The times of a query's tokens go back: give them in the order of the tokens, from one clock.")
