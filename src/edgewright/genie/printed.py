"""Key figures that early versions of genie-t2t-run printed, instead of writing a profile."""

from __future__ import annotations

import re

from edgewright.genie.kpis import FIRST_TOKEN, GENERATED_TOKENS, GENERATION_RATE, GENERATION_TIME, MICROSECONDS, RATE
from edgewright.genie.profile import Event

#: `Prompt processing: 2281999 us`, `Token generation: 353360439 us, 0.464115 tokens/s`, however a log marks them.
#: More digits are no measurement.
_PROMPT = re.compile(r"Prompt processing:\s*(\d{1,15}) us", re.ASCII)
_GENERATION = re.compile(r"Token generation:\s*(\d{1,15}) us,\s*(\d{1,15}(?:\.\d{1,15})?) tokens/s", re.ASCII)


def printed_queries(text: str) -> tuple[Event, ...]:
    """Return the queries whose figures are in a program's output, in their order; none where it has no such lines.

    The number of tokens isn't printed: it is time times rate. Times have no start.
    """
    events: list[Event] = []
    prompt_us = 0
    for line in text.splitlines():
        prompt, generation = _PROMPT.search(line), _GENERATION.search(line)
        if prompt:
            prompt_us = int(prompt[1])
        if generation:
            duration_us, rate = int(generation[1]), float(generation[2])
            kpis = {
                FIRST_TOKEN: (prompt_us, MICROSECONDS),
                GENERATED_TOKENS: (round(duration_us * rate / 1e6), ""),
                GENERATION_RATE: (rate, RATE),
                GENERATION_TIME: (duration_us, MICROSECONDS),
            }
            events.append(Event("GenieDialog_query", 0, prompt_us + duration_us, kpis))
            prompt_us = 0
    return tuple(events)
