"""A case: which dialogs run at once on one accelerator, with what, and how. Plain values; `check` says what is wrong.

Every way of writing one (a case file, a use-case line, the flags of genie-t2t-run) ends here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgewright.runtime.encoding import EmbeddingFile
from edgewright.runtime.scheduling.timeline import Timeline

Discipline = Literal["fifo", "round-robin", "weighted", "fair-time", "priority", "deadline", "free"]
Reset = Literal["iteration", "never"]
OnError = Literal["isolate", "fail-fast"]
Requantize = Literal["round", "legacy-truncate"]


@dataclass(frozen=True, kw_only=True)
class SimulatedModel:
    """A cost model in milliseconds, for a device that is not here. `stages` are those of a policy: phase, ms, times."""

    prefill_ms: float = 0.0
    chunk: int = 128
    decode_ms: float = 0.0
    host_ms: float = 0.0
    #: Part of a step's cost by which it may differ, evenly distributed.
    jitter: float = 0.0
    context: int = 4096
    stages: tuple[tuple[str, float, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """An entry of the registry of models: a bundle, a Genie dialog configuration, or a cost model.

    `table` turns tokens that embedding-fed dialogs generate into embeddings: "bundle" (the bundle's own), "none" (they
    end with their first token), or a raw file. A bundle and a Genie configuration may stand together: the bundle runs
    here, the configuration on an external runner. What stands after `table` is the default of the model's dialogs, and
    is in them already once a case is read.
    """

    name: str
    bundle: Path | None = None
    genie: Path | None = None
    simulated: SimulatedModel | None = None
    table: EmbeddingFile | Literal["bundle", "none"] = "bundle"
    prompt: str | None = None
    prompt_file: Path | None = None
    tokens_file: Path | None = None
    embedding: EmbeddingFile | None = None
    observation: Path | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """What a dialog is asked, exactly one of these: `prompt_tokens` is for cost models, `observation` for policies."""

    prompt: str | None = None
    prompt_file: Path | None = None
    tokens_file: Path | None = None
    embedding: EmbeddingFile | None = None
    observation: Path | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class DialogSpec:
    """A dialog. `timeline` has the weights over time; a constant one where a flat weight was given."""

    name: str
    model: str
    input: InputSpec
    iterations: int = 1
    max_tokens: int | None = None
    reset: Reset = "iteration"
    start_ms: int = 0
    think_ms: int = 0
    period_ms: float | None = None
    deadline_ms: float | None = None
    timeline: Timeline = field(default_factory=lambda: Timeline.constant(1))
    priority: int = 100
    sampling: dict[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    requantize: Requantize = "round"
    ignore_eos: bool = False
    raw: bool = True


@dataclass(frozen=True, kw_only=True)
class SchedulerSpec:
    """How the accelerator is shared. `hold_ms` is how long it may stay idle for a task whose turn it is."""

    discipline: Discipline = "weighted"
    hold_ms: float = 2.0
    prefill_chunk: int = 128


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """How often and how carefully it is run."""

    warmup: int = 1
    repeats: int = 1
    seed: int = 0
    timeout_s: float | None = None
    on_error: OnError = "isolate"
    solo: bool = True
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunnerSpec:
    """An external genie-t2t-run: the words before its flags (`adb shell ...`), and whether each dialog is a process.

    It writes its profiles in `profile_dir`, a folder where it runs; `pull` is the command that copies one here: its
    words hold {remote} and {local}, and without {local} what it prints is the file. `shells` remote shells take its
    words apart on their way (`adb shell` and `ssh` are one each). `check_files` looks for its files here too.
    `prompt_flag` is the flag by which the program takes the prompt file of a second dialog. `flags` are words that it
    gets besides those that the case needs, such as `--lora adapter`.
    """

    command: tuple[str, ...]
    process: Literal["run", "dialog"] = "run"
    profile_dir: str | None = None
    pull: tuple[str, ...] | None = None
    shells: int | None = None
    check_files: bool | None = None
    prompt_flag: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case. `sources` are the files it was read from; `places` says where `dialogs.NAME` and the like stand."""

    name: str
    models: tuple[ModelSpec, ...]
    dialogs: tuple[DialogSpec, ...]
    scheduler: SchedulerSpec = field(default_factory=SchedulerSpec)
    run: RunSpec = field(default_factory=RunSpec)
    runner: RunnerSpec | None = None
    sources: tuple[Path, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def model_of(self, dialog: DialogSpec) -> ModelSpec:
        """Return the model of a dialog."""
        return next(model for model in self.models if model.name == dialog.model)
