"""Measures a bundle: load, prefill, time to first token, decode after given contexts, memory.

Token ids are random and seeded, and the end of a text has no meaning, so every run does the same work. Speeds are
given as the median of the repeats with the smallest and the largest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bench.memory import AnonymousPeak, status_bytes
from edgewright.errors import UsageError
from edgewright.progress import SILENT, Progress
from edgewright.runtime.llm import LLM
from edgewright.runtime.session import Session

#: Length of the prompt whose first token is timed.
TTFT_PROMPT_TOKENS = 32


@dataclass(frozen=True)
class Plan:
    """What is measured: prefill of `prompt_tokens`, `decode_tokens` after each context of `after`, `repeats` times."""

    prompt_tokens: int = 512
    decode_tokens: int = 64
    after: tuple[int, ...] = (32, 1024)
    repeats: int = 5
    seed: int = 0

    def check(self, max_context: int) -> None:
        """Raise UsageError when the context is too small for the plan."""
        most = max([self.prompt_tokens, TTFT_PROMPT_TOKENS, *(after + self.decode_tokens for after in self.after)])
        if most > max_context:
            raise UsageError(
                f"The measurement needs {most} tokens of context and the bundle has {max_context}: choose smaller "
                "--prompt-tokens, --decode-tokens or --after."
            )


@dataclass(frozen=True)
class Figure:
    """A measured number: median, smallest and largest of the repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Summarise `values`, at least one."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.4g} [{self.low:.4g}..{self.high:.4g}]"


@dataclass(frozen=True)
class Decode:
    """Decode after a context of `after` tokens: speed, and percentiles of the time between tokens (repeats pooled)."""

    after: int
    tokens_per_s: Figure
    inter_token_p50_ms: float
    inter_token_p95_ms: float


@dataclass(frozen=True)
class Measurement:
    """The result; `peak_rss_bytes` includes mapped weights, `peak_anonymous_bytes` doesn't (None where unknown)."""

    bundle: str
    plan: Plan
    threads: int | None
    bundle_bytes: int
    load_ms: Figure
    prefill_tokens_per_s: Figure
    ttft_ms: Figure
    decode: tuple[Decode, ...]
    peak_rss_bytes: int | None
    peak_anonymous_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values."""
        return {**asdict(self), "ttft_prompt_tokens": TTFT_PROMPT_TOKENS}


def measure_bundle(
    bundle: str | Path, plan: Plan | None = None, *, threads: int | None = None, progress: Progress = SILENT
) -> Measurement:
    """Measure a bundle in this process; memory peaks are this process's own.

    Digests are checked at the first load, which is not timed; the timed loads have the files in the page cache. Raises
    UsageError when the plan doesn't fit the context, BundleError when the bundle can't be loaded.
    """
    plan = plan or Plan()
    with AnonymousPeak() as anonymous:
        with progress.step("load"):
            llm = LLM.load(bundle, threads=threads)
            plan.check(llm.max_context)
            del llm  # two engines at once would double the peak
            loads = []
            for _ in range(plan.repeats):
                llm = None  # type: ignore[assignment]
                llm, seconds = _load(bundle, threads)
                loads.append(seconds * 1000)
        ids = _random_ids(llm, plan)
        with progress.step("prefill"):
            prefill = _repeat(lambda: plan.prompt_tokens / prefill_s(llm, ids[: plan.prompt_tokens]), plan.repeats)
        with progress.step("first token"):
            ttft = _repeat(lambda: prefill_s(llm, ids[:TTFT_PROMPT_TOKENS]) * 1000, plan.repeats)
        decodes = []
        for after in plan.after:
            with progress.step(f"decode after {after}"):
                decodes.append(_decode(llm, ids[:after], plan))
    return Measurement(
        bundle=str(bundle),
        plan=plan,
        threads=threads,
        bundle_bytes=sum(entry["bytes"] for entry in llm.manifest.files.values()),
        load_ms=Figure.of(loads),
        prefill_tokens_per_s=prefill,
        ttft_ms=ttft,
        decode=tuple(decodes),
        peak_rss_bytes=status_bytes("VmHWM"),
        peak_anonymous_bytes=anonymous.bytes,
    )


def prefill_s(llm: LLM, ids: Sequence[int]) -> float:
    """Return the seconds from an empty session to the greedy first token after `ids`."""
    session = llm.session()
    start = time.perf_counter()
    _greedy(session, ids)
    return time.perf_counter() - start


def decode_s(llm: LLM, ids: Sequence[int], count: int) -> list[float]:
    """Return the seconds of each of `count` greedy tokens after `ids`; the prefill and its token are not timed."""
    session = llm.session()
    token = _greedy(session, ids)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        token = _greedy(session, [token])
        times.append(time.perf_counter() - start)
    return times


def _greedy(session: Session, ids: Sequence[int]) -> int:
    """Feed ids; returns the likeliest next token."""
    column = int(session.append(ids, logits="last")[0].argmax())
    return column if session.vocabulary is None else int(session.vocabulary.ids[column])


def _load(bundle: str | Path, threads: int | None) -> tuple[LLM, float]:
    start = time.perf_counter()
    llm = LLM.load(bundle, threads=threads, check=False)
    return llm, time.perf_counter() - start


def _random_ids(llm: LLM, plan: Plan) -> list[int]:
    count = max([plan.prompt_tokens, TTFT_PROMPT_TOKENS, *plan.after])
    kept = llm.vocabulary
    vocab = int(llm.manifest.model["vocab_size"]) if kept is None else len(kept)
    columns = np.random.default_rng(plan.seed).integers(0, vocab, count)
    return [int(token) for token in (columns if kept is None else kept.ids[columns])]


def _repeat(once: Callable[[], float], repeats: int) -> Figure:
    once()  # the first touches memory that the others find ready
    return Figure.of([once() for _ in range(repeats)])


def _decode(llm: LLM, ids: Sequence[int], plan: Plan) -> Decode:
    runs = [decode_s(llm, ids, plan.decode_tokens) for _ in range(plan.repeats)]
    p50, p95 = np.percentile(np.concatenate(runs) * 1000, [50, 95])
    speed = Figure.of([plan.decode_tokens / sum(run) for run in runs])
    return Decode(len(ids), speed, round(float(p50), 4), round(float(p95), 4))
