"""What the scheduling tests share: clients, a driver by hand, simulated tasks, readings of records."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from threading import Event, Lock

from edgewright.runtime.scheduling.course import Outcome, Recorder
from edgewright.runtime.scheduling.rhythm import Rhythm
from edgewright.runtime.scheduling.scheduler import Scheduler
from edgewright.runtime.scheduling.seat import Client
from edgewright.runtime.scheduling.simulated import DialogCosts, SimulatedDialog
from edgewright.runtime.scheduling.threads import run_threads
from edgewright.runtime.scheduling.timeline import NS_PER_MS, Timeline
from edgewright.runtime.scheduling.virtual import run_virtual
from edgewright.runtime.scheduling.work import Job, Quantum, StepRecord, Task

#: The requirement's example: the two other dialogs first, the first one alone from 5 s, all from 20 s.
THREE_SEGMENTS = ("0:0,1:5000", "4:0,0:5000,4:20000", "1:0,0:5000,1:20000")
LETTERS = "ABCDEFGHIJKLMNOP"


def timeline(weight: float | str) -> Timeline:
    return Timeline.parse(weight) if isinstance(weight, str) else Timeline.constant(weight)


def clients_of(*weights: float | str, priorities: Sequence[int] | None = None) -> list[Client]:
    levels = priorities or [100] * len(weights)
    return [
        Client(name=LETTERS[place], timeline=timeline(weight), priority=level)
        for place, (weight, level) in enumerate(zip(weights, levels, strict=True))
    ]


def saturated(
    scheduler: Scheduler, quanta: int, costs: Callable[[int], int] | None = None
) -> Iterator[tuple[int, int]]:
    """Serve clients that all always wait: yield (who, cost) of each quantum. `costs` gives ns for a client."""
    now = 0
    for index in range(len(scheduler.clients)):
        scheduler.arrive(index, now)
    for _ in range(quanta):
        client = scheduler.choose(now).client
        assert client is not None, "the accelerator idles while somebody waits"
        cost = NS_PER_MS if costs is None else costs(client)
        now += cost
        scheduler.finish(client, now, cost)
        scheduler.arrive(client, now)
        yield client, cost


def sequence(scheduler: Scheduler, quanta: int) -> str:
    return "".join(LETTERS[client] for client, _ in saturated(scheduler, quanta))


def dialog(
    name: str,
    step_ms: float,
    *,
    max_tokens: int = 1 << 40,
    prompt_tokens: int = 1,
    host_ms: float = 0.0,
    jitter: float = 0.0,
    work: Callable[[int], None] | None = None,
    prefill_ms: float | None = None,
    rhythm: Rhythm | None = None,
    context: int = 1 << 50,
) -> SimulatedDialog:
    """A dialog whose prefill chunks cost what a decode step does, where nothing else is said."""
    costs = DialogCosts(
        prefill_ms=prefill_ms or step_ms, decode_ms=step_ms, host_ms=host_ms, jitter=jitter, context=context
    )
    return SimulatedDialog(
        name=name, costs=costs, prompt_tokens=prompt_tokens, max_tokens=max_tokens, work=work, rhythm=rhythm or Rhythm()
    )


def simulate(
    tasks: Sequence[Task],
    weights: Sequence[float | str],
    discipline: str = "weighted",
    *,
    until_ms: float | None = None,
    hold_ms: float = 2.0,
    priorities: Sequence[int] | None = None,
) -> tuple[Recorder, Outcome, Scheduler]:
    scheduler = Scheduler(clients_of(*weights, priorities=priorities), discipline, hold_ns=round(hold_ms * NS_PER_MS))
    recorder = Recorder()
    until = None if until_ms is None else round(until_ms * NS_PER_MS)
    return recorder, run_virtual(tasks, scheduler, recorder, until_ns=until), scheduler


def order(steps: Sequence[StepRecord]) -> str:
    """Who ran, one letter a quantum, in the order of their starts."""
    return "".join(LETTERS[step.task] for step in sorted(steps, key=lambda step: step.start_ns))


def quanta(steps: Sequence[StepRecord], begin_ms: float = 0, end_ms: float = float("inf")) -> Counter[int]:
    """How many quanta each task began in a time."""
    return Counter(step.task for step in steps if begin_ms * NS_PER_MS <= step.start_ns < end_ms * NS_PER_MS)


def overlaps(steps: Sequence[StepRecord]) -> list[tuple[StepRecord, StepRecord]]:
    """Quanta that began before the one before had ended."""
    ordered = sorted(steps, key=lambda step: (step.start_ns, step.end_ns))
    return [(one, other) for one, other in pairwise(ordered) if other.start_ns < one.end_ns]


class Script:
    """A task made by hand: each job is what its quanta do; `between` is its host work."""

    def __init__(
        self,
        name: str,
        *jobs: Iterable[Callable[[], None]],
        between: Callable[[], None] = lambda: None,
        release_ns: int = 0,
        deadline_ns: int | None = None,
        cost_ns: int | None = NS_PER_MS,
        facts: Callable[[], dict[str, object]] = dict,
    ) -> None:
        self.name, self._jobs, self._between = name, jobs, between
        self._release_ns, self._deadline_ns, self._cost_ns, self._facts = release_ns, deadline_ns, cost_ns, facts
        self.opened = self.closed = 0
        #: Set when the task has begun, in whatever thread.
        self.began = Event()

    def jobs(self, now: Callable[[], int]) -> Iterator[Job]:
        self.began.set()
        for iteration, runs in enumerate(self._jobs):
            yield Job(iteration, self._quanta(runs), self._release_ns, self._deadline_ns, self._facts)

    def _quanta(self, runs: Iterable[Callable[[], None]]) -> Iterator[Quantum]:
        self.opened += 1
        try:
            for run in runs:
                yield Quantum("decode", 1, run, emits=True, device_ns=self._cost_ns)
                self._between()
        finally:
            self.closed += 1


# -- real time ---------------------------------------------------------------------------------------------------------


def leaving_nothing() -> Iterator[None]:
    """A fixture's body: nothing of a run may be left behind."""
    before, interval = set(threading.enumerate()), sys.getswitchinterval()
    yield
    assert set(threading.enumerate()) <= before
    assert sys.getswitchinterval() == interval


class Clock:
    """Nanoseconds that pass when somebody spends them."""

    def __init__(self) -> None:
        self._now, self._lock = 5, Lock()

    def __call__(self) -> int:
        return self._now

    def spend(self, ns: int) -> None:
        with self._lock:
            self._now += ns


def nothing() -> None:
    """Take no time."""


def waited(event: Event) -> None:
    assert event.wait(60)


def broken() -> None:
    raise ValueError("the device is on fire")


def run_real(
    tasks: list[Task], *weights: float | str, discipline: str = "weighted", **how: object
) -> tuple[Recorder, Outcome]:
    recorder = Recorder()
    scheduler = Scheduler(clients_of(*(weights or [1] * len(tasks))), discipline)
    return recorder, run_threads(tasks, scheduler, recorder, **how)  # type: ignore[arg-type]
