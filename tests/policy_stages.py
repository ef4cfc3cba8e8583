"""Runs a policy's stages, as features made them, the way the runtime does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgewright.dialects import LOWERINGS
from edgewright.graph import Stage
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models._policy import PolicyBounds
from edgewright.models._policy_features import build_featured
from edgewright.runtime.policy.schedule import step_size, time_embedding, times

BOUNDS = PolicyBounds(prefix=700, horizon=60)
Feeds = dict[str, np.ndarray]


class FeaturedPolicy:
    """The stages of a checkpoint with features in a dialect; `change` may change them before they are lowered."""

    def __init__(
        self,
        source: Any,
        spec: Any,
        features: Mapping[str, bool | str],
        folder: Path,
        dialect: str = "onnxruntime",
        *,
        threads: int = 1,
        change: Callable[[dict[str, Stage]], object] = lambda _: None,
    ) -> None:
        self.spec, self.width, self.folder = spec, source.sizes.expert.width, folder
        stages, self.applied = build_featured(source, spec, features, bounds=BOUNDS)
        change(stages)
        self.stages = {name: LOWERINGS[dialect](stage) for name, stage in stages.items()}
        self.sessions: dict[str, ort.InferenceSession] = {}
        for name, stage in self.stages.items():
            write_stage(stage, folder / name)
            settings = ort.SessionOptions()
            settings.intra_op_num_threads = threads
            settings.log_severity_level = 3
            settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
            path = str(folder / name / MODEL_FILE)
            self.sessions[name] = ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])

    def run(self, name: str, feeds: Feeds) -> Feeds:
        """Run a stage on those of `feeds` it takes."""
        contract = self.stages[name].contract
        outputs = [tensor.name for tensor in contract.outputs]
        given = {tensor.name: feeds[tensor.name] for tensor in contract.inputs}
        return dict(zip(outputs, self.sessions[name].run(outputs, given), strict=True))

    def prefix(self, frame: Feeds) -> Feeds:
        """Run vision, where the frame has images, and prefix; returns all that the denoise stage reads."""
        feeds = dict(frame)
        if "images" in frame:
            features = self.run("vision", frame)["image_features"]
            batch = len(frame["prefix_mask"])
            feeds["image_features"] = features.reshape(batch, -1, features.shape[-1])
        return {**frame, **self.run("prefix", feeds)}

    def time(self, step: int, batch: int, kept: int = 0, horizon: int = 1) -> Feeds:
        """Return the time of a step for a batch; `kept` actions are at time 0."""
        rows = np.full((batch, horizon if kept else 1), step)
        rows[:, :kept] = self.spec.steps
        if self.applied.schedule is not None:
            return {"time_index": rows}
        every = np.append(times(self.spec.schedule, self.spec.steps), np.float32(0))
        return {"time_embedding": time_embedding(every[rows], self.width)}

    def velocity(self, read: Feeds, x_t: np.ndarray, step: int, kept: int = 0) -> np.ndarray:
        """Run one step."""
        time = self.time(step, len(x_t), kept, x_t.shape[1])
        return self.run("denoise", {**read, **time, "x_t": x_t})["velocity"]

    def actions(self, read: Feeds) -> np.ndarray:
        """Run all steps from the frame's noise."""
        if "actions" in {tensor.name for tensor in self.stages["denoise"].contract.outputs}:
            return self.run("denoise", read)["actions"]
        x_t = read["noise"].copy()
        for step in range(self.spec.steps):
            x_t += self.velocity(read, x_t, step) * step_size(self.spec.steps)
        return x_t
