"""A bundle's robot policy: load it, give it observations, get chunks of actions."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.bundle import Manifest, opened_while_checked, read_manifest
from edgewright.errors import BundleError, GenerationError
from edgewright.files import inside
from edgewright.runtime.embedding import embedding_of
from edgewright.runtime.engine import Engine, open_engine
from edgewright.runtime.policy.committed import model_actions
from edgewright.runtime.policy.loop import Features, Floats, Flow, Loop, Watch, finished
from edgewright.runtime.policy.numbers import check_statistics, robot_actions
from edgewright.runtime.policy.observation import Prepared, prepare
from edgewright.runtime.policy.prompt import load_tokenizer
from edgewright.runtime.policy.schedule import FixedSchedule
from edgewright.runtime.policy.spec import PolicySpec, Statistics
from edgewright.runtime.policy.stages import STAGES
from edgewright.runtime.policy.table import TableStage
from edgewright.runtime.scheduling.work import Quantum
from edgewright.runtime.text import Tokenizer

#: Normalization statistics, beside the tokenizer in the bundle's sidecars.
STATISTICS = "norm_stats.json"
#: What of the spec a client is told.
_TOLD = (
    "kind",
    "convention",
    "cameras",
    "required_cameras",
    "state_dim",
    "action_dim",
    "horizon",
    "steps",
    "steps_to_run",
    "limits",
)
_MS = 1000.0

Observation = Mapping[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Chunk:
    """The actions of one observation.

    `actions` float32 [horizon, action_dim] are in the robot's units and absolute; `normalized` float32 [horizon,
    model_action_dim] is what the model gave. `timings` are milliseconds: prepare, vision, prefix, denoise (a list, one
    for each step) and total; of a batch they are the batch's. `notes` say what was done to the observation that its
    sender may not expect.
    """

    actions: npt.NDArray[np.float32]
    normalized: npt.NDArray[np.float32]
    timings: Mapping[str, Any]
    notes: tuple[str, ...] = ()


class Policy:
    """The three stages of a robot policy with what belongs around them. Make one with `Policy.load`.

    Calls from several threads wait for each other. A call that ends in an exception, KeyboardInterrupt included, leaves
    the policy as it was.
    """

    def __init__(
        self,
        loop: Loop,
        statistics: Statistics,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        manifest: Manifest | None = None,
    ) -> None:
        self.spec: PolicySpec = loop.spec
        self.statistics, self.tokenizer, self.manifest = statistics, tokenizer, manifest
        self._loop, self._lock = loop, threading.Lock()
        self._random, self._drawing = np.random.default_rng(seed), threading.Lock()
        self._spare: list[Loop] = []  # twins of the loop that no `quanta` uses
        check_statistics(self.spec, statistics)

    @classmethod
    def load(
        cls,
        bundle: str | Path,
        threads: int | None = None,
        *,
        check: bool = True,
        seed: int = 0,
        share_cores: bool = False,
        engines: Mapping[str, Engine] | None = None,
    ) -> Policy:
        """Load a bundle.

        `threads` is the number of cores to use, by default one per physical core; `seed` that of the noise when a call
        brings none. `check` compares every file with its digest while the engines load. `share_cores` suits other
        engines in the process: see `EngineSettings.sharing`. `engines` are used for stages in the place of the bundle's
        own, such as those that stand in for another device's. Raises BundleError and its subclasses: no bundle or none
        of a policy, a changed or missing file, another machine or engine version, stages or statistics that don't fit
        the policy.
        """
        folder = Path(bundle)
        manifest = read_manifest(folder)
        spec = policy_spec(manifest)
        return opened_while_checked(
            folder,
            manifest,
            lambda: cls._open(folder, manifest, spec, seed, engines or {}, threads=threads, share_cores=share_cores),
            check=check,
        )

    @classmethod
    def _open(
        cls, folder: Path, manifest: Manifest, spec: PolicySpec, seed: int, engines: Mapping[str, Engine], **how: Any
    ) -> Policy:
        if missing := [name for name in STAGES if name not in manifest.stages]:
            raise BundleError(f"The bundle lacks the policy's stages {', '.join(missing)}: build it again.")
        features = Features.from_json(manifest.model.get("features", {}))
        schedule = manifest.model.get("schedule")
        statistics, tokenizer = sidecar(folder, manifest, STATISTICS), sidecar(folder, manifest, spec.tokenizer)
        # Threads that spin behind a step would keep the cores from another engine's next one.
        how["share_cores"] |= len({manifest.stages[name].runtime for name in STAGES}) > 1
        stages = {name: engines.get(name) or open_engine(folder, manifest.stages[name], **how) for name in STAGES}
        table = embedding_of(folder, manifest, "prefix")
        if table is not None:
            stages["prefix"] = TableStage(stages["prefix"], table)
        return cls(
            Loop(spec, stages, features, None if schedule is None else FixedSchedule.from_json(schedule)),
            _statistics(statistics),
            load_tokenizer(spec, tokenizer),
            seed=seed,
            manifest=manifest,
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """What a client must know to send observations and to use actions, its guards included: plain values."""
        return metadata_of(self.spec, takes_committed=self._loop.takes_committed)

    def infer(
        self,
        observation: Observation,
        noise: Floats | None = None,
        steps: int | None = None,
        committed: npt.ArrayLike | None = None,
        *,
        watch: Watch | None = None,
    ) -> Chunk:
        """Return the chunk of one observation (see `observation` for its spellings).

        `noise` float32 [horizon, model_action_dim] is what the flow begins with, by default the policy's own random
        numbers; it is not written to, and the same noise gives the same actions. `steps` is the number of denoise
        steps, by default the spec's. `committed` [n, action_dim] are the first n actions of the chunk, absolute and in
        the robot's units, where the robot is sent them before the chunk arrives: the rest continues them. `watch` is
        told of every step. Raises ObservationError, and GenerationError for noise, steps or committed actions that
        can't be used, or where the actions would not be finite.
        """
        with self._lock:
            return finished(self._quanta(self._loop, [observation], noise, None, steps, [committed], watch))[0]

    def infer_batch(
        self,
        observations: Sequence[Observation],
        noise: Floats | None = None,
        steps: int | None = None,
        committed: Sequence[npt.ArrayLike | None] | None = None,
        *,
        watch: Watch | None = None,
    ) -> list[Chunk]:
        """Return the chunks of several observations, computed at once; `noise` and `committed` have one row for each.

        Like `infer` in everything else.
        """
        if not observations:
            return []
        if committed is not None and len(committed) != len(observations):
            raise GenerationError(
                f"There are committed actions for {len(committed)} of {len(observations)} observations: give one entry "
                "for each, None where there are none."
            )
        with self._lock:
            return finished(self._quanta(self._loop, observations, noise, len(observations), steps, committed, watch))

    def quanta(
        self,
        observation: Observation,
        noise: Floats | None = None,
        steps: int | None = None,
        committed: npt.ArrayLike | None = None,
        *,
        watch: Watch | None = None,
    ) -> Generator[Quantum, None, Chunk]:
        """Yield the engine's calls that `infer` makes, each to be run before the next is asked for; returns the chunk.

        Several of these may be under way at once, each in memory of its own, and nobody waits for another. The chunk's
        `total` has the time between the calls in it. Raises as `infer` does.
        """
        try:
            loop = self._spare.pop()
        except IndexError:
            loop = self._loop.twin()
        try:
            (chunk,) = yield from self._quanta(loop, [observation], noise, None, steps, [committed], watch)
        finally:
            self._spare.append(loop)
        return chunk

    def _quanta(
        self,
        loop: Loop,
        observations: Sequence[Observation],
        noise: Floats | None,
        batch: int | None,
        steps: int | None,
        committed: Sequence[npt.ArrayLike | None] | None,
        watch: Watch | None,
    ) -> Generator[Quantum, None, list[Chunk]]:
        start = time.perf_counter()
        prepared = [prepare(self.spec, self.statistics, self.tokenizer, one) for one in observations]
        kept = [
            None if actions is None else model_actions(self.spec, self.statistics, actions, one.raw_state)
            for actions, one in zip(committed or [None] * len(prepared), prepared, strict=True)
        ]
        begin = self._noise(noise, batch)
        ready = time.perf_counter()
        flow = yield from loop.quanta(prepared, begin, steps=steps, committed=kept, watch=watch)
        return self._chunks(prepared, flow, start, ready)

    def _chunks(self, prepared: Sequence[Prepared], flow: Flow, start: float, ready: float) -> list[Chunk]:
        with np.errstate(over="ignore", invalid="ignore"):  # refused just below
            actions = [
                robot_actions(self.spec, self.statistics, rows, one.raw_state)
                for rows, one in zip(flow.actions, prepared, strict=True)
            ]
        if not all(np.isfinite(rows).all() for rows in actions):
            raise GenerationError(
                "The policy's actions are NaN or infinite, so none are given out: verify the bundle against its "
                "checkpoint, or build it with a wider number format."
            )
        timings = {
            "prepare": _MS * (ready - start),
            **flow.timings,
            "total": _MS * (time.perf_counter() - start),
        }
        return [
            Chunk(actions=mine, normalized=rows, timings=timings, notes=(*one.notes, *outside(self.spec, mine)))
            for mine, rows, one in zip(actions, flow.actions, prepared, strict=True)
        ]

    def _noise(self, noise: Any, batch: int | None) -> Floats:
        """Return noise float32 [batch, horizon, model_action_dim]: the caller's, without batch where None, or new."""
        mine = (self.spec.horizon, self.spec.model_action_dim)
        shape = mine if batch is None else (batch, *mine)
        if noise is None:
            with self._drawing:
                return self._random.standard_normal((batch or 1, *mine), np.float32)
        if not isinstance(noise, np.ndarray) or noise.dtype != np.float32 or noise.shape != shape:
            what = f"{noise.dtype} {list(noise.shape)}" if isinstance(noise, np.ndarray) else type(noise).__name__
            raise GenerationError(
                f"The noise is {what}, but the flow begins with float32 {list(shape)} "
                f"({'' if batch is None else 'batch, '}horizon, the model's action numbers): give that, or none."
            )
        if not np.isfinite(noise).all():
            raise GenerationError("The noise has NaN or infinite values, so no action can follow: give other noise.")
        return noise.reshape(-1, *mine)


def metadata_of(spec: PolicySpec, *, takes_committed: bool) -> dict[str, Any]:
    """Return what a client is told of a policy; `takes_committed`: `infer` takes committed actions."""
    values = spec.to_json()
    return {**{name: values[name] for name in _TOLD}, "takes_committed": takes_committed}


def outside(spec: PolicySpec, actions: npt.NDArray[np.float32]) -> tuple[str, ...]:
    """Return a note where actions [horizon, action_dim] are not within the limits' minimum and maximum."""
    limits, where = spec.limits, np.zeros(spec.action_dim, np.bool_)
    if limits.minimum is not None:
        where |= (actions < np.array(limits.minimum)).any(axis=0)
    if limits.maximum is not None:
        where |= (actions > np.array(limits.maximum)).any(axis=0)
    if not where.any():
        return ()
    numbers = ", ".join(map(str, np.flatnonzero(where)))
    return (f"actions are outside the bundle's limits at {numbers}: a guard (Control) on the robot's side clips them",)


def policy_spec(manifest: Manifest) -> PolicySpec:
    """Return the policy that a manifest describes; raises BundleError when it describes none."""
    described = manifest.model.get("policy")
    if described is None:
        raise BundleError("The bundle holds no robot policy: give one that was made from a policy's checkpoint.")
    return PolicySpec.from_json(described)


def sidecar(folder: Path, manifest: Manifest, name: str) -> Path:
    """Return the path of a sidecar; raises BundleError when the bundle doesn't have it."""
    relative = f"sidecars/{name}"
    if relative not in manifest.files:
        raise BundleError(f"The bundle lacks {relative}, which its policy needs: build the bundle again.")
    return inside(folder, relative)


def _statistics(path: Path) -> Statistics:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise BundleError(f"The bundle's {path.name} can't be read as JSON: build the bundle again.") from None
    return Statistics.from_json(data)
