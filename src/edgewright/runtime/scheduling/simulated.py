"""Tasks of a cost model: what a dialog or a policy would ask of a device that is not here.

They check scheduling, and predict nothing about a real device. In virtual time nothing is computed; with `work`, which
is called with nanoseconds, they can occupy a device in real time as well, as `time.sleep` would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from edgewright.errors import ContextOverflowError, UsageError
from edgewright.runtime.scheduling.rhythm import Rhythm
from edgewright.runtime.scheduling.timeline import NS_PER_MS
from edgewright.runtime.scheduling.work import Job, Phase, Quantum

Work = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class DialogCosts:
    """What the steps of a language model cost: a prefill chunk (of `chunk` tokens, padded to it), a decode step, and
    the host work after each; `jitter` is the part by which a step may differ, evenly distributed.
    """

    prefill_ms: float
    decode_ms: float
    host_ms: float = 0.0
    jitter: float = 0.0
    chunk: int = 128
    context: int = 4096

    def __post_init__(self) -> None:
        _check_costs(self.prefill_ms, self.decode_ms, host_ms=self.host_ms, jitter=self.jitter)
        if self.chunk < 1 or self.context < 1:
            raise UsageError("A simulated model needs a chunk and a context of at least 1 token.")


@dataclass(frozen=True)
class Stage:
    """A stage of a policy: its cost, how often it runs for a frame, and the rows it feeds."""

    phase: Phase
    cost_ms: float
    times: int = 1
    tokens: int = 1


@dataclass
class _Dice:
    """Costs of steps, with the jitter of one job."""

    jitter: float
    key: str
    _random: random.Random | None = field(default=None, init=False)

    def ns(self, cost_ms: float) -> int:
        if not self.jitter:
            return _ns(cost_ms)
        if self._random is None:
            self._random = random.Random(self.key)
        return _ns(cost_ms * (1 + self.jitter * self._random.uniform(-1, 1)))


@dataclass(kw_only=True)
class SimulatedDialog:
    """A dialog that prefills `prompt_tokens` in chunks and then decodes until it has `max_tokens`.

    The last chunk gives the first token. With `reset` "never" each iteration goes on in the context of the one before,
    after its last token, which was not fed. As with a real one, an answer ends where the context is full, and a prompt
    that does not fit fails its job with ContextOverflowError.
    """

    name: str
    costs: DialogCosts
    prompt_tokens: int = 1
    max_tokens: int = 1
    rhythm: Rhythm = field(default_factory=Rhythm)
    reset: Literal["iteration", "never"] = "iteration"
    seed: int = 0
    work: Work | None = None
    _held: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.max_tokens < 1:
            raise UsageError(f"The simulated dialog {self.name} needs at least 1 prompt token and 1 generated token.")

    def jobs(self, now: Callable[[], int]) -> Iterator[Job]:
        """Yield one job for each iteration."""
        self._held = 0
        for iteration, (release, deadline) in enumerate(self.rhythm.releases(now)):
            if self.reset == "iteration":
                self._held = 0
            unfed = int(self._held > 0)
            facts: dict[str, Any] = {
                "prompt_tokens": unfed + self.prompt_tokens,
                "generated_tokens": 0,
                "finish_reason": None,
                "saturated": 0,
            }
            yield Job(iteration, self._quanta(iteration, facts), release, deadline, _frozen(facts))

    def _quanta(self, iteration: int, facts: dict[str, Any]) -> Iterator[Quantum]:
        costs, dice = self.costs, _Dice(self.costs.jitter, f"{self.seed}:{self.name}:{iteration}")
        prompt, left = facts["prompt_tokens"], costs.context - self._held
        if prompt > left:
            raise ContextOverflowError(
                f"{self.name} has a prompt of {prompt} tokens, and {left} of its context's {costs.context} are left."
            )
        for begin in range(0, prompt, costs.chunk):
            tokens = min(costs.chunk, prompt - begin)
            yield from self._step("prefill", tokens, dice, facts, emits=begin + tokens == prompt)
        # The last token needs no room.
        limit = min(self.max_tokens, left - prompt + 1)
        while facts["generated_tokens"] < limit:
            yield from self._step("decode", 1, dice, facts, emits=True)
        facts["finish_reason"] = "length"

    def _step(self, phase: Phase, tokens: int, dice: _Dice, facts: dict[str, Any], *, emits: bool) -> Iterator[Quantum]:
        costs = self.costs
        cost = dice.ns(costs.prefill_ms if phase == "prefill" else costs.decode_ms)
        padded = costs.chunk if phase == "prefill" else None
        yield _quantum(phase, tokens, emits, self._held, padded, cost, dice.ns(costs.host_ms), self.work)
        self._held += tokens
        facts["generated_tokens"] += emits
        if self.work is not None:
            self.work(_ns(costs.host_ms))


@dataclass(kw_only=True)
class SimulatedPolicy:
    """A robot policy: every frame runs the stages in order, each as often as it says; the last step gives a chunk."""

    name: str
    stages: Sequence[Stage]
    rhythm: Rhythm = field(default_factory=Rhythm)
    host_ms: float = 0.0
    jitter: float = 0.0
    seed: int = 0
    work: Work | None = None

    def __post_init__(self) -> None:
        if not self.stages or any(stage.times < 1 or stage.tokens < 1 for stage in self.stages):
            raise UsageError(f"The simulated policy {self.name} needs stages that run at least once.")
        _check_costs(*(stage.cost_ms for stage in self.stages), host_ms=self.host_ms, jitter=self.jitter)

    def jobs(self, now: Callable[[], int]) -> Iterator[Job]:
        """Yield one job for each frame."""
        for iteration, (release, deadline) in enumerate(self.rhythm.releases(now)):
            yield Job(iteration, self._quanta(iteration), release, deadline)

    def _quanta(self, iteration: int) -> Iterator[Quantum]:
        dice = _Dice(self.jitter, f"{self.seed}:{self.name}:{iteration}")
        steps = [stage for stage in self.stages for _ in range(stage.times)]
        for place, stage in enumerate(steps):
            emits = place == len(steps) - 1
            host = dice.ns(self.host_ms)
            yield _quantum(stage.phase, stage.tokens, emits, 0, None, dice.ns(stage.cost_ms), host, self.work)
            if self.work is not None:
                self.work(_ns(self.host_ms))


def _quantum(
    phase: Phase, tokens: int, emits: bool, held: int, padded: int | None, cost_ns: int, host_ns: int, work: Work | None
) -> Quantum:
    run = _nothing if work is None else lambda: work(cost_ns)
    return Quantum(phase, tokens, run, emits, held, padded, cost_ns, host_ns)


def _nothing() -> None:
    """Compute nothing: time passes by itself."""


def _frozen(facts: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    return lambda: dict(facts)


def _ns(milliseconds: float) -> int:
    """Return nanoseconds; what takes time takes at least one, or time would stand still."""
    return max(round(milliseconds * NS_PER_MS), 1 if milliseconds else 0)


def _check_costs(*costs_ms: float, host_ms: float, jitter: float) -> None:
    if not all(0 < cost < float("inf") for cost in costs_ms):
        raise UsageError(
            "The steps of a simulated model take time: give prefill_ms and decode_ms, or each stage, more than 0 ms."
        )
    if not (0 <= host_ms < float("inf") and 0 <= jitter < 1):
        raise UsageError("Host work of a simulated task is at least 0 ms, and its jitter from 0 up to 1, without 1.")
