"""The times of a denoise loop and how a policy is told of them.

The flow goes from noise at time 1 to actions at time 0 in `steps` Euler steps of one size, counted by an integer, so
that rounding never adds or drops one. The two projects round the times differently:

- `float32-sum` (openpi): one float32 number, to which the float32 step is added again and again;
- `float64-linear` (LeRobot): 1 + k * step in float64, then float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, get_args

import numpy as np
import numpy.typing as npt

from edgewright.errors import BundleError, GenerationError
from edgewright.runtime.policy.spec import MAX_STEPS, Schedule

Floats = npt.NDArray[np.float32]

#: Of the sines and cosines of a time, in units of the flow's whole length.
MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0


def check_steps(steps: Any) -> int:
    """Return a number of denoise steps; raises GenerationError unless it is an integer from 1 to 1000."""
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or not 1 <= steps <= MAX_STEPS:
        raise GenerationError(f"The number of denoise steps is {steps!r}: give an integer from 1 to {MAX_STEPS}.")
    return int(steps)


def step_size(steps: int) -> np.float32:
    """Return what a step adds to the time: -1 / steps."""
    return np.float32(-1.0 / steps)


def times(schedule: Schedule, steps: int) -> Floats:
    """Return the time in front of each step, float32 [steps], from 1 down to about 1 / steps."""
    if schedule == "float64-linear":
        return np.array([1.0 + step * (-1.0 / steps) for step in range(steps)], np.float32)
    result = np.empty(steps, np.float32)
    time, size = np.float32(1.0), step_size(steps)
    for step in range(steps):
        result[step] = time
        time += size
    return result


def time_embedding(time: Floats, width: int) -> Floats:
    """Return sines, then cosines of times [...] at `width` / 2 periods from 0.004 to 4: float32 [..., width].

    Computed in float64 and rounded at the end, as both projects do.
    """
    fraction = np.linspace(0.0, 1.0, width // 2, dtype=np.float64)
    period = MIN_PERIOD * (MAX_PERIOD / MIN_PERIOD) ** fraction
    angle = time.astype(np.float64)[..., None] * (1.0 / period * 2.0 * math.pi)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class FixedSchedule:
    """The schedule that a bundle's denoise stage has inside, as tables or as the whole loop.

    `times` are those of the rows 0 to `steps` - 1 of the tables; `zero_row` is the row of time 0, which committed
    actions take: `steps`, or None where there is none.
    """

    steps: int
    convention: Schedule
    times: tuple[float, ...]
    zero_row: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the schedule as JSON-compatible values."""
        return {
            "steps": self.steps,
            "convention": self.convention,
            "times": list(self.times),
            "zero_row": self.zero_row,
        }

    @classmethod
    def of(cls, convention: Schedule, steps: int, *, zero_row: bool = True) -> Self:
        """Return a convention's schedule; the row of time 0, where wanted, follows those of the steps."""
        rows = tuple(float(time) for time in times(convention, steps))
        return cls(steps=steps, convention=convention, times=rows, zero_row=steps if zero_row else None)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build from a manifest; raises BundleError when it isn't a schedule or not the one its convention gives."""
        if not isinstance(data, Mapping) or data.keys() != {"steps", "convention", "times", "zero_row"}:
            raise _refused("does not have exactly steps, convention, times and zero_row")
        convention, steps, zero_row = data["convention"], data["steps"], data["zero_row"]
        if convention not in get_args(Schedule):
            raise _refused(f"has the unknown convention {convention!r}")
        if type(steps) is not int or not 1 <= steps <= MAX_STEPS:
            raise _refused(f"has {steps!r} steps")
        schedule = cls.of(convention, steps)
        if data["times"] != list(schedule.times):
            raise _refused(f"has other times than {convention} gives for {steps} steps")
        if zero_row is not None and (type(zero_row) is not int or zero_row != steps):
            raise _refused(f"has the row {zero_row!r} for time 0")
        return cls(steps=steps, convention=convention, times=schedule.times, zero_row=zero_row)

    def require(self, convention: Schedule, steps: int, error: type[BundleError] | type[GenerationError]) -> None:
        """Raise `error` unless this is the schedule of `steps` steps by `convention`."""
        if (self.convention, self.steps) != (convention, steps):
            raise error(
                f"The bundle's denoise stage was built for {self.steps} steps by {self.convention} and can't run "
                f"{steps} by {convention}: build it again for those, or without the time table and the loop in one "
                "graph."
            )


def _refused(what: str) -> BundleError:
    return BundleError(f"The bundle's schedule {what}, so its denoise stage can't be trusted: build the bundle again.")
