"""A profile: of each phase its layers with their times, their modules and the work that the plan counts for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Layer:
    """A layer of the engine in one phase: all of its calls in a run taken together.

    `nodes` are the bundle's nodes that it runs and `modules` what these were made for, none where nothing leads to one.
    `times_ms` has an entry for each run, none where the engine gives its mean alone. `macs` are the multiply-adds that
    the plan counts, by the numbers that are multiplied, and `bytes` those that move; both are of one run.
    """

    name: str
    kind: str
    stage: str
    modules: tuple[str, ...]
    group: str
    calls: float
    times_ms: tuple[float, ...]
    mean_ms: float
    median_ms: float | None = None
    nodes: tuple[str, ...] = ()
    macs: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0


@dataclass(frozen=True)
class Span:
    """A layer in one run: its index among the phase's, when it began and how long it took, in microseconds.

    Layers inside of it (of a loop) are spans of their own, within its time.
    """

    layer: int
    start_us: float
    us: float


@dataclass(frozen=True)
class Phase:
    """One way to run a stage: prefill, decode, or a policy's stage.

    `sizes` say what was run. `totals_ms` are whole runs while they were profiled and `latencies_ms` whole runs without
    that. `mean_ms` is the mean of the former, or the sum of the layers where these are means alone and take longer.
    `planned` tells whether the plan counted its work, and `unplaced_macs` and `unplaced_bytes` are what no layer was
    found for. `timeline` is one run.
    """

    name: str
    sizes: Mapping[str, int]
    layers: tuple[Layer, ...]
    totals_ms: tuple[float, ...]
    mean_ms: float
    latencies_ms: tuple[float, ...] = ()
    planned: bool = False
    unplaced_macs: int = 0
    unplaced_bytes: int = 0
    timeline: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Peaks:
    """What the machine can do: bytes a second and operations a second by the numbers multiplied; `title` says whose.

    What isn't known is None, or missing.
    """

    title: str
    bytes_per_s: float | None = None
    ops_per_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """A profile of a bundle, or of a file alone (`bundle` is then empty).

    `engines` names the engine and its version of each stage. Peaks of memory in bytes are those of a process that loads
    the bundle and runs each phase once, None where they are not known.
    """

    bundle: str
    kind: str
    engines: Mapping[str, str]
    threads: int | None
    peaks: Peaks
    phases: tuple[Phase, ...]
    peak_rss_bytes: int | None = None
    peak_anonymous_bytes: int | None = None
    notes: tuple[str, ...] = ()
