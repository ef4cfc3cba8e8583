"""What the tests of quantized policies share: observations that fit a golden, runs, float and quantized loops."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgewright.build.key import policy_record
from edgewright.checkpoint.policy import PolicyCheckpoint, open_policy
from edgewright.checkpoint.safetensors_writer import array_spec, write_safetensors
from edgewright.dialects import LOWERINGS
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models._policy import build_policy
from edgewright.progress import SILENT, Progress
from edgewright.quant.apply import quantizable, quantize_stage
from edgewright.quant.recipe import Data, Recipe, stored_recipe
from edgewright.quant.recipe_file import load_recipe, parse_recipe
from edgewright.quantizer.policy import PolicyQuantized, quantize_policy
from edgewright.quantizer.policy_folder import write_policy_folder
from edgewright.quantizer.policy_observations import Observations, load_policy_observations
from plain_stages import BOUNDS, PlainStages
from policy_goldens import Frame, frame, pixels

TASKS = ("pick up the red cube", "open the drawer", "put the bowl on the plate and close the door")


def write_observations(folder: Path, checkpoint: PolicyCheckpoint, frames: int = 5, seed: int = 0) -> Path:
    """Write a folder of observations that fit a policy: smooth images, states inside the statistics, some tasks."""
    rng, spec = np.random.default_rng(seed), checkpoint.spec
    folder.mkdir(parents=True)
    names = [camera.rpartition(".")[2] for camera in spec.cameras if "empty" not in camera][:2]
    arrays: dict[str, np.ndarray] = {}
    for name in names:
        waves = rng.normal(size=(frames, 3, 2))
        grid = np.linspace(0, 3, 37)[None, :, None, None] * waves[:, None, None, :, 0]
        grid = grid + np.linspace(0, 2, 53)[None, None, :, None] * waves[:, None, None, :, 1]
        noise = rng.normal(scale=0.1, size=(frames, 37, 53, 3))
        arrays[f"observation.images.{name}"] = (127.5 * (1 + np.clip(np.sin(grid) + noise, -1, 1))).astype(np.uint8)
    if spec.state_dim:
        low, high = (_end(checkpoint, sign) for sign in (-1, 1))
        arrays["observation.state"] = rng.uniform(low, high, (frames, spec.state_dim)).astype(np.float32)
    write_safetensors(folder / "0.safetensors", {key: array_spec(value) for key, value in arrays.items()})
    tasks = [TASKS[index % len(TASKS)] for index in range(frames)]
    (folder / "0.json").write_text(json.dumps({"task": tasks}), encoding="utf-8")
    return folder


def _end(checkpoint: PolicyCheckpoint, sign: int) -> np.ndarray:
    state = checkpoint.statistics.state
    if "q01" in state:
        return state["q01" if sign < 0 else "q99"]
    return state["mean"] + sign * state["std"]


def observations_of(checkpoint: PolicyCheckpoint, folder: Path, frames: int = 5, seed: int = 0) -> Observations:
    """Write and read observations."""
    source = str(write_observations(folder, checkpoint, frames, seed))
    return load_policy_observations(checkpoint, Data(source, sequences=64, seed=seed))


def recipe_named(text: str) -> Recipe:
    """Return a built-in recipe by name, or one from its YAML; the file is called r.yaml in messages."""
    return parse_recipe(text, "r.yaml") if ":" in text else load_recipe(text)


def run(
    checkpoint: PolicyCheckpoint,
    recipe: str,
    observations: Observations | None,
    *,
    progress: Progress = SILENT,
    threads: int | None = 1,
) -> PolicyQuantized:
    """Quantize a policy."""
    record = policy_record(checkpoint)
    return quantize_policy(checkpoint, record, recipe_named(recipe), observations, progress=progress, threads=threads)


def write(
    folder: Path, checkpoint: PolicyCheckpoint, recipe: str, observations: Observations | None, done: PolicyQuantized
) -> Path:
    """Write what a run made, and remove its work."""
    folder.mkdir(parents=True)
    record: Any = {} if observations is None else observations.record
    write_policy_folder(folder, checkpoint, policy_record(checkpoint), recipe_named(recipe), done, record)
    done.work.remove()
    return folder


def quantized(
    folder: Path, checkpoint: PolicyCheckpoint, recipe: str, observations: Observations | None, **options: Any
) -> PolicyCheckpoint:
    """Quantize, write and open again."""
    done = run(checkpoint, recipe, observations, **options)
    return open_policy(write(folder, checkpoint, recipe, observations, done))


def relative(got: np.ndarray | Sequence[np.ndarray], wanted: np.ndarray | Sequence[np.ndarray]) -> float:
    """Return the root of the error's energy over the wanted energy."""
    a, b = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    return float(np.sqrt(np.square(a - b).sum() / np.square(b).sum()))


class StoredStages(PlainStages):
    """The stages of a checkpoint with its codes taken over, or with what a recipe says of them rounded as it says."""

    def __init__(self, checkpoint: Any, dialect: str, folder: Path, recipe: Recipe | None = None) -> None:
        self.sessions, self.contracts = {}, {}
        chosen = stored_recipe("stored") if recipe is None else recipe
        stages = build_policy(checkpoint, bounds=BOUNDS)
        modules = {name: [(use.module, use.kind) for use in quantizable(stage)] for name, stage in stages.items()}
        choices = chosen.stage_choices(modules)
        for name, stage in stages.items():
            quantize_stage(stage, choices[name])
            lowered = LOWERINGS[dialect](stage)
            write_stage(lowered, folder / name)
            settings = ort.SessionOptions()
            settings.intra_op_num_threads, settings.log_severity_level = 1, 3
            path = str(folder / name / MODEL_FILE)
            self.sessions[name] = ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
            self.contracts[name] = lowered.contract


def seen_frame(case: str, scenario: str, checkpoint: PolicyCheckpoint) -> Frame:
    """Read a scenario with its images, so that the vision stage counts; SmolVLA's have features alone."""
    found = frame(case, scenario)
    if case == "smolvla":
        return found
    return dataclasses.replace(found, features=None, pixels=pixels(case, scenario, checkpoint))


def actions(stages: PlainStages, f: Frame) -> np.ndarray:
    """Run a frame from its noise to its actions, `[batch, horizon, action_dim]`."""
    prefix, x_t = stages.prefix(f), f.x_t[0]
    for step in range(len(f.x_t)):
        moved = dataclasses.replace(f, x_t=np.repeat(x_t[None], step + 1, axis=0))
        x_t = x_t + np.float32(-1.0 / len(f.x_t)) * stages.velocity(moved, prefix, step)
    return x_t


def wanted_actions(f: Frame) -> np.ndarray:
    """Return the actions a frame ends in by its own velocities."""
    return f.x_t[-1] + np.float32(-1.0 / len(f.x_t)) * f.velocity[-1]
