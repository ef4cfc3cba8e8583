"""Measures a policy's bundle: load, the stages of a chunk, the whole chunk, memory.

Observations are synthetic and seeded: random pixels from as many cameras as are asked for, a state within what the
policy was trained on, one prompt. Every repeat has its own images, state and noise. Times are given as percentiles over
the repeats.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.bench.measure import Figure
from edgewright.bench.memory import AnonymousPeak, status_bytes
from edgewright.errors import UsageError
from edgewright.progress import SILENT, Progress
from edgewright.runtime.policy.policy import Chunk, Policy
from edgewright.runtime.policy.prompt import token_ids
from edgewright.runtime.policy.spec import PolicySpec, Statistics

PROMPT = "pick up the red block and put it into the blue bowl"
#: Height and width of the images in pixels, as cameras of robots send them.
CAMERA_PIXELS = (480, 640)
#: Chunks before the first that is timed.
WARM_UP = 2
LOADS = 3
_STAGES = ("prepare", "vision", "prefix")


@dataclass(frozen=True)
class PolicyPlan:
    """What is measured: `repeats` chunks of observations with `cameras` images (None: all) and `prompt`.

    `steps` is the number of denoise steps, None the bundle's.
    """

    repeats: int = 20
    steps: int | None = None
    cameras: int | None = None
    prompt: str = PROMPT
    seed: int = 0

    def names(self, spec: PolicySpec) -> tuple[str, ...]:
        """Return the cameras that have an image, required ones first; raises UsageError where that can't be."""
        least, most = len(spec.required_cameras), len(spec.cameras)
        wanted = most if self.cameras is None else self.cameras
        if not least <= wanted <= most:
            raise UsageError(
                f"The policy has {most} cameras, of which {least} must have an image, so it can't be measured with "
                f"--cameras {wanted}: give a number between."
            )
        optional = [name for name in spec.cameras if name not in spec.required_cameras]
        chosen = {*spec.required_cameras, *optional[: wanted - least]}
        return tuple(name for name in spec.cameras if name in chosen)


@dataclass(frozen=True)
class Latency:
    """Milliseconds: percentiles, smallest and largest of what was measured."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency:
        """Summarize `values`, at least one."""
        p50, p95, p99 = (float(value) for value in np.percentile(values, [50, 95, 99]))
        return cls(p50, p95, p99, min(values), max(values))


@dataclass(frozen=True)
class PolicyMeasurement:
    """The result.

    `latencies` are prepare, vision, prefix, denoise step (where the runtime runs the steps; all of them pooled),
    denoise (all steps of a chunk) and total. `prefix_tokens` are those of the images there are and of the prompt. The
    peaks are as those of a `Measurement`. `notes` are those of the chunks, each once.
    """

    bundle: str
    plan: PolicyPlan
    threads: int | None
    kind: str
    steps: int
    cameras: tuple[str, ...]
    prompt_tokens: int
    prefix_tokens: int
    bundle_bytes: int
    load_ms: Figure
    latencies: Mapping[str, Latency]
    peak_rss_bytes: int | None
    peak_anonymous_bytes: int | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values."""
        return {
            **asdict(self),
            "cameras": list(self.cameras),
            "camera_pixels": list(CAMERA_PIXELS),
            "notes": list(self.notes),
        }


def measure_policy(
    bundle: str | Path, plan: PolicyPlan | None = None, *, threads: int | None = None, progress: Progress = SILENT
) -> PolicyMeasurement:
    """Measure a policy's bundle in this process; memory peaks are this process's own.

    Digests are checked at the first load, which is not timed; the timed loads have the files in the page cache. Raises
    UsageError when the plan doesn't fit the policy, BundleError when the bundle can't be loaded, GenerationError for
    steps it can't run.
    """
    plan = plan or PolicyPlan()
    with AnonymousPeak() as anonymous:
        with progress.step("load"):
            policy = Policy.load(bundle, threads=threads)
            cameras = plan.names(policy.spec)
            del policy  # two policies at once would double the peak
            loads = []
            for _ in range(LOADS):
                policy = None  # type: ignore[assignment]
                policy, load_ms = _load(bundle, threads)
                loads.append(load_ms)
        random = np.random.default_rng(plan.seed)
        with progress.step("warm up"):
            for _ in range(WARM_UP):
                _chunk(policy, plan, cameras, random)
        with progress.step(f"{plan.repeats} chunks"):
            chunks = [_chunk(policy, plan, cameras, random) for _ in range(plan.repeats)]
    assert policy.manifest is not None
    tokens = _prompt_tokens(policy, plan, random)
    return PolicyMeasurement(
        bundle=str(bundle),
        plan=plan,
        threads=threads,
        kind=policy.spec.kind,
        steps=policy.spec.steps if plan.steps is None else plan.steps,
        cameras=cameras,
        prompt_tokens=tokens,
        prefix_tokens=tokens + len(cameras) * policy.spec.image_tokens,
        bundle_bytes=sum(entry["bytes"] for entry in policy.manifest.files.values()),
        load_ms=Figure.of(loads),
        latencies=latencies([chunk.timings for chunk in chunks]),
        peak_rss_bytes=status_bytes("VmHWM"),
        peak_anonymous_bytes=anonymous.bytes,
        notes=tuple(dict.fromkeys(text for chunk in chunks for text in chunk.notes)),
    )


def latencies(timings: Sequence[Mapping[str, Any]]) -> dict[str, Latency]:
    """Return the percentiles of the timings of several chunks, as `Chunk` has them."""
    found = {name: Latency.of([one[name] for one in timings]) for name in _STAGES}
    if any(len(one["denoise"]) > 1 for one in timings):
        found["denoise step"] = Latency.of([step for one in timings for step in one["denoise"]])
    found["denoise"] = Latency.of([sum(one["denoise"]) for one in timings])
    found["total"] = Latency.of([one["total"] for one in timings])
    return found


def synthetic_observation(
    spec: PolicySpec,
    statistics: Statistics,
    random: np.random.Generator,
    *,
    cameras: Sequence[str],
    prompt: str = PROMPT,
) -> dict[str, Any]:
    """Return an observation of random pixels and a state within the statistics; no draw depends on the cameras' names.

    Images are uint8 [*CAMERA_PIXELS, 3], the state float32 [state_dim].
    """
    images = {name: random.integers(0, 256, (*CAMERA_PIXELS, 3), np.uint8) for name in cameras}
    observation: dict[str, Any] = {"images": images, "prompt": prompt}
    if spec.state_dim:
        observation["state"] = _state(spec, statistics, random)
    return observation


def _state(spec: PolicySpec, statistics: Statistics, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return a state within what the policy was trained on, -0.5 to 0.5 where there are no statistics."""
    place = random.uniform(-0.5, 0.5, spec.state_dim)
    known = statistics.state
    low, high = np.full(spec.state_dim, -0.5), np.full(spec.state_dim, 0.5)
    for names in (("q01", "q99"), ("min", "max")):
        if all(name in known for name in names):
            low, high = (known[name][: spec.state_dim] for name in names)
            break
    else:
        if "mean" in known and "std" in known:
            mean, std = (known[name][: spec.state_dim] for name in ("mean", "std"))
            low, high = mean - std, mean + std
    state: npt.NDArray[np.float32] = ((low + high) / 2 + place * (high - low)).astype(np.float32)
    return state


def _load(bundle: str | Path, threads: int | None) -> tuple[Policy, float]:
    start = time.perf_counter()
    policy = Policy.load(bundle, threads=threads, check=False)
    return policy, 1000.0 * (time.perf_counter() - start)


def _chunk(policy: Policy, plan: PolicyPlan, cameras: Sequence[str], random: np.random.Generator) -> Chunk:
    spec = policy.spec
    observation = synthetic_observation(spec, policy.statistics, random, cameras=cameras, prompt=plan.prompt)
    observation["image_mask"] = dict.fromkeys(set(spec.cameras) - set(cameras), False)  # they are left out on purpose
    noise = random.standard_normal((spec.horizon, spec.model_action_dim), np.float32)
    return policy.infer(observation, noise, plan.steps)


def _prompt_tokens(policy: Policy, plan: PolicyPlan, random: np.random.Generator) -> int:
    """Return how many tokens the prompt takes; with the state in it, that of one observation."""
    state = random.uniform(-1, 1, policy.spec.state_dim) if policy.spec.state_dim else None
    ids, _ = token_ids(policy.spec, policy.tokenizer, plan.prompt, state)
    return len(ids)
