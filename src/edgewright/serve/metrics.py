"""Counts and times of a policy server, spelled as Prometheus reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

#: Upper ends of the histograms' buckets, in seconds; one without an end follows.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ERRORS = ("message", "observation", "deadline", "internal")
REFUSALS = ("busy", "stopping", "token", "origin", "connections", "size")


class Histogram:
    """Durations by bucket."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[sum(seconds > end for end in BUCKETS_S)] += 1
        self._sum_s += seconds

    def lines(self, name: str) -> Iterator[str]:
        """Yield the samples: buckets are cumulative."""
        total = 0
        for end, count in zip([*map(str, BUCKETS_S), "+Inf"], self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{end}"}} {total}'
        yield f"{name}_sum {self._sum_s:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """What a server counts; used from its event loop only.

    Every request ends in exactly one of: an answer, an error, a refusal (`busy` or `stopping`), a client that left.
    The other refusals are of connections and of messages that were too long to be read.
    """

    def __init__(self) -> None:
        self.requests = self.answers = self.left = 0
        self.errors: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.latency, self.inference = Histogram(), Histogram()

    def text(self, *, queue: int, connections: int) -> str:
        """Return all of it, with the two lengths of now."""
        return "\n".join(self._lines(queue, connections)) + "\n"

    def _lines(self, queue: int, connections: int) -> Iterator[str]:
        yield from _counter("requests_total", "Observations received.", self.requests)
        yield from _counter("answers_total", "Action chunks sent.", self.answers)
        yield from _counter("left_total", "Requests whose client went away before the answer.", self.left)
        yield from _labelled("errors_total", "Requests that ended in an error.", "kind", ERRORS, self.errors)
        yield from _labelled("refusals_total", "What was refused.", "reason", REFUSALS, self.refusals)
        for name, what, value in (
            ("queue_length", "Observations that wait for the policy.", queue),
            ("connections", "Clients that are connected.", connections),
        ):
            yield from _head(name, what, "gauge")
            yield f"edgewright_{name} {value}"
        for name, what, histogram in (
            ("latency_seconds", "Observation received to action chunk ready.", self.latency),
            ("inference_seconds", "The policy's share of the latency.", self.inference),
        ):
            yield from _head(name, what, "histogram")
            yield from histogram.lines(f"edgewright_{name}")


def _head(name: str, what: str, kind: str) -> Iterator[str]:
    yield f"# HELP edgewright_{name} {what}"
    yield f"# TYPE edgewright_{name} {kind}"


def _counter(name: str, what: str, value: int) -> Iterator[str]:
    yield from _head(name, what, "counter")
    yield f"edgewright_{name} {value}"


def _labelled(name: str, what: str, label: str, values: tuple[str, ...], counts: Mapping[str, int]) -> Iterator[str]:
    yield from _head(name, what, "counter")
    for value in values:  # also those at zero: a rate needs a first sample
        yield f'edgewright_{name}{{{label}="{value}"}} {counts.get(value, 0)}'
