"""The control flow of a policy: vision and prefix once per frame, then denoise steps on one read-only prefix.

What the steps read is bound once per frame. In a step only the noisy actions and the time change, in their own memory,
and the actions are summed up in float32 as both projects do it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from edgewright.errors import BundleError, GenerationError
from edgewright.runtime.engine import Engine
from edgewright.runtime.policy.frame import Frame, Plan
from edgewright.runtime.policy.observation import Prepared
from edgewright.runtime.policy.schedule import FixedSchedule, check_steps, step_size, time_embedding, times
from edgewright.runtime.policy.spec import PolicySpec, Schedule
from edgewright.runtime.policy.stages import Array, Buffers, policy_shapes
from edgewright.runtime.scheduling.work import Quantum

Floats = npt.NDArray[np.float32]
Result = TypeVar("Result")
#: Is told of each step that the runtime makes: its number, the actions before it, their velocity. The arrays are the
#: loop's own.
Watch = Callable[[int, Floats, Floats], None]


@dataclass(frozen=True, kw_only=True)
class Features:
    """How the loop feeds the stages, and what it expects of them.

    `compact`: masked tokens are left out instead of masked. `batched`: one run of the vision stage for all images.
    `table`: the denoise stage has the times inside and takes their row. `whole`: it is the whole loop.
    """

    compact: bool = True
    batched: bool = True
    table: bool = False
    whole: bool = False

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build from a manifest's features; those that only concern the graphs have no effect here.

        Raises BundleError on a value that a feature can't have.
        """
        if not isinstance(data, Mapping):
            raise BundleError("The bundle's features are not an object: build the bundle again.")
        return cls(
            compact=_value(data, "prefix-compaction", {True: True, False: False}, default=True),
            batched=_value(data, "view-batching", {True: True, False: False}, default=True),
            table=_value(data, "time-table", {True: True, False: False}, default=False),
            whole=_value(data, "loop", {"graph": True, "unrolled": True, "step": False}, default=False),
        )


def _value(data: Mapping[str, Any], name: str, choices: Mapping[bool | str, bool], *, default: bool) -> bool:
    value = data.get(name)
    if value is None:
        return default
    if type(value) not in (bool, str) or value not in choices:
        raise BundleError(f"The bundle's feature {name} is {value!r}, which this runtime doesn't know: build it again.")
    return choices[value]


@dataclass(frozen=True, eq=False)
class Flow:
    """What a loop gives: the model's actions float32 [batch, horizon, model_action_dim], and milliseconds by stage."""

    actions: Floats
    timings: Mapping[str, Any]


class Loop:
    """The stages of a policy and the order they run in.

    Raises BundleError when the stages don't fit each other, the spec, the features or the schedule. Not for several
    threads at once.
    """

    def __init__(
        self,
        spec: PolicySpec,
        stages: Mapping[str, Engine],
        features: Features | None = None,
        schedule: FixedSchedule | None = None,
    ) -> None:
        self.spec, self.features, self.schedule = spec, features or Features(), schedule
        self._stages = stages
        shapes = policy_shapes(spec, {name: stage.contract for name, stage in stages.items()})
        self._vision, self._prefix, self._denoise = shapes
        self._buffers = Buffers()
        self._frame: Frame | None = None
        self._check_schedule()
        self._check_sizes()

    def _check_schedule(self) -> None:
        """Refuse features that the denoise stage doesn't have, and a schedule it wasn't built for."""
        taken = self._denoise.tensors
        for name, said in (("noise", self.features.whole), ("time_index", self.features.table)):
            if (name in taken) != said and not (self.features.whole and name == "time_index"):
                has = "takes" if name in taken else "doesn't take"
                raise BundleError(
                    f"The bundle's denoise stage {has} {name}, and its features say otherwise: build the bundle again."
                )
        if not self.features.table and not self.features.whole:
            return
        if self.schedule is None:
            raise BundleError("The bundle doesn't say the schedule its denoise stage was built for: build it again.")
        self.schedule.require(self.spec.schedule, self.spec.steps, BundleError)

    def _check_sizes(self) -> None:
        """Refuse stages that can't take what observations may ask for."""
        spec, prefix = self.spec, self._prefix
        slots = len(spec.cameras) * spec.image_tokens
        full = {"image_slots": slots, "text": spec.max_tokens, "prefix": slots + spec.max_tokens + self._state_tokens}
        fixed = [name for name in full if name in prefix.fixed or name in self._denoise.fixed]
        if fixed and self.features.compact:
            raise BundleError(
                f"The bundle's stages were built for fixed {' and '.join(fixed)}, and leaving masked tokens out "
                "needs free ones: build it again without prefix-compaction, or with free sizes."
            )
        prefix.require(full, BundleError)
        self._denoise.require({"prefix": full["prefix"], "horizon": spec.horizon}, BundleError)

    @property
    def _state_tokens(self) -> int:
        return int("state" in self._prefix.tensors)

    def check_committed(self, count: int) -> None:
        """Raise GenerationError unless `count` actions may be committed."""
        if not count:
            return
        if count >= self.spec.horizon:
            raise GenerationError(
                f"{count} committed actions leave nothing to infer of a chunk of {self.spec.horizon}: commit fewer."
            )
        if lacks := self._lacks():
            raise GenerationError(
                f"The bundle's denoise stage {lacks}, so it can't keep committed actions: infer without them, or build "
                "the bundle for them."
            )

    @property
    def takes_committed(self) -> bool:
        """Whether committed actions can be kept at all."""
        return self._lacks() is None and self.spec.horizon > 1

    def _lacks(self) -> str | None:
        """Return what the denoise stage is that can't keep committed actions, None where it can."""
        largest = self._denoise.largest("times")
        if self.features.whole:
            return "has the whole loop inside"
        if self.features.table and self.schedule is not None and self.schedule.zero_row is None:
            return "has a time table without a row for time 0"
        if largest is not None and largest < self.spec.horizon:
            return "takes one time for all actions"
        return None

    def run(
        self,
        prepared: Sequence[Prepared],
        noise: Floats,
        *,
        steps: int | None = None,
        committed: Sequence[Floats | None] | None = None,
        watch: Watch | None = None,
    ) -> Flow:
        """Return the actions of a batch of prepared observations.

        `noise` float32 [batch, horizon, model_action_dim] is only read. `committed` has, for each observation, None or
        the first actions of the chunk as the model sees them, float32 [n, model_action_dim]: they are kept, at time 0
        in every step. (A policy that LeRobot trained with `rtc_training_max_delay` knows such chunks; any other keeps
        the actions too, and continues them as well as it can.) Raises GenerationError for a batch, steps or committed
        actions that the stages don't take.
        """
        return finished(self.quanta(prepared, noise, steps=steps, committed=committed, watch=watch))

    def quanta(
        self,
        prepared: Sequence[Prepared],
        noise: Floats,
        *,
        steps: int | None = None,
        committed: Sequence[Floats | None] | None = None,
        watch: Watch | None = None,
    ) -> Generator[Quantum, None, Flow]:
        """Yield the engine's calls that `run` makes, each to be run before the next is asked for; returns the flow.

        What is between them is not in its timings. One at a time: the memory is the loop's own, so a call of `run` or
        another of these spoils it. Raises as `run` does.
        """
        count = check_steps(self.spec.steps if steps is None else steps)
        if self.schedule is not None and (self.features.table or self.features.whole):
            self.schedule.require(self.spec.schedule, count, GenerationError)
        kept = [None if actions is None or not len(actions) else actions for actions in committed or ()]
        kept += [None] * (len(prepared) - len(kept))
        self.check_committed(max((len(actions) for actions in kept if actions is not None), default=0))
        frame = self._frame_of(prepared, timed=any(actions is not None for actions in kept))
        vision: list[float] = []
        for at, see in zip(range(0, frame.plan.views, frame.portion), frame.see, strict=True):
            real = min(frame.portion, frame.plan.views - at)
            yield Quantum("vision", real, _timed(see, vision), padded=_more(frame.portion, real))
        frame.place()
        prefix: list[float] = []
        held = int(frame.prefix_mask.sum())
        yield Quantum("prefix", held, _timed(frame.read, prefix), padded=_more(frame.prefix_mask.size, held))
        np.copyto(frame.x_t, noise)
        denoise: list[float] = []
        move = _timed(frame.move, denoise)
        if self.features.whole:
            yield Quantum("denoise", 1, move, emits=True, held=held)
        else:
            for index in self._steps(frame, count, kept, watch):
                yield Quantum("denoise", 1, move, emits=index == count - 1, held=held)
        timings = {"vision": sum(vision), "prefix": sum(prefix), "denoise": denoise}
        return Flow((frame.velocity if self.features.whole else frame.x_t).copy(), timings)

    def _steps(self, frame: Frame, steps: int, kept: Sequence[Floats | None], watch: Watch | None) -> Iterator[int]:
        """Move x_t from noise to actions; yields the number of each step when the stage is to run."""
        rows, zero = self._rows(steps, frame.time.shape[-1])
        x_t, velocity, size = frame.x_t, frame.velocity, step_size(steps)
        holds = [(row, actions) for row, actions in enumerate(kept) if actions is not None]
        for index in range(steps):
            for row, actions in holds:
                x_t[row, : len(actions)] = actions
            frame.time[...] = rows[index]
            for row, actions in holds:
                frame.time[row, : len(actions)] = zero
            yield index
            if watch is not None:
                watch(index, x_t, velocity)
            np.multiply(velocity, size, out=velocity)
            np.add(x_t, velocity, out=x_t)
        for row, actions in holds:
            x_t[row, : len(actions)] = actions

    def twin(self) -> Loop:
        """Return a loop of the same stages with memory of its own."""
        return Loop(self.spec, self._stages, self.features, self.schedule)

    def _rows(self, steps: int, width: int) -> tuple[Array, Any]:
        """Return what the denoise stage takes for each step's time, and for time 0."""
        if self.features.table and self.schedule is not None:
            return np.arange(steps), self.schedule.zero_row
        rows = _embeddings(self.spec.schedule, steps, width)
        return rows[:steps], rows[steps]

    def _frame_of(self, prepared: Sequence[Prepared], *, timed: bool) -> Frame:
        """Return the frame for these observations with everything in it that doesn't come from a stage."""
        fixed = self._denoise.fixed.get("times")
        count = fixed if fixed is not None else self.spec.horizon if timed else 1
        plan = Plan.of(self.spec, prepared, compact=self.features.compact, state=self._state_tokens, times=count)
        if self._frame is None or self._frame.plan.key != plan.key:
            shapes = (self._vision, self._prefix, self._denoise)
            self._frame = Frame(self.spec, self._stages, shapes, self._buffers, plan, self._portion(plan.views))
        self._frame.fill(plan, prepared)
        return self._frame

    def _portion(self, views: int) -> int:
        """Return how many images one run of the vision stage takes."""
        if "views" in self._vision.fixed:
            return self._vision.fixed["views"]
        largest = self._vision.largest("views") or views
        return max(1, min(views, largest) if self.features.batched else 1)


@lru_cache(maxsize=8)
def _embeddings(schedule: Schedule, steps: int, width: int) -> Floats:
    """Return the embedded times of the steps, then that of time 0: float32 [steps + 1, width]."""
    return time_embedding(np.append(times(schedule, steps), np.float32(0.0)), width)


def finished(quanta: Generator[Quantum, None, Result]) -> Result:
    """Run quanta one after the other; returns what is returned after the last."""
    while True:
        try:
            quantum = next(quanta)
        except StopIteration as end:
            return cast(Result, end.value)
        quantum.run()


def _timed(call: Callable[[], None], spent: list[float]) -> Callable[[], None]:
    """Return the call as one that adds the milliseconds it took to `spent`."""

    def run() -> None:
        start = time.perf_counter()
        call()
        spent.append(1000.0 * (time.perf_counter() - start))

    return run


def _more(computed: int, real: int) -> int | None:
    return None if computed == real else computed
