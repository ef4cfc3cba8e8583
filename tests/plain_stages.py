"""The stages of a robot policy as `build_policy` makes them, in a dialect and ready to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgewright.dialects import LOWERINGS
from edgewright.graph import Stage
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models._policy import PolicyBounds, build_policy
from policy_goldens import Frame

BOUNDS = PolicyBounds(prefix=160, horizon=24)
Feeds = dict[str, np.ndarray]


class PlainStages:
    """The stages of a checkpoint in a dialect, each a session on one thread; `change` comes before lowering."""

    def __init__(
        self,
        checkpoint: Any,
        dialect: str,
        folder: Path,
        *,
        change: Callable[[Stage], object] = lambda _: None,
        **options: Any,
    ) -> None:
        self.sessions: dict[str, ort.InferenceSession] = {}
        self.contracts = {}
        for name, stage in build_policy(checkpoint, bounds=BOUNDS, **options).items():
            change(stage)
            lowered = LOWERINGS[dialect](stage)
            write_stage(lowered, folder / name)
            settings = ort.SessionOptions()
            settings.intra_op_num_threads = 1
            self.sessions[name] = ort.InferenceSession(
                str(folder / name / MODEL_FILE), settings, providers=["CPUExecutionProvider"]
            )
            self.contracts[name] = lowered.contract

    def run(self, name: str, feeds: Feeds) -> Feeds:
        """Run a stage on those of `feeds` it takes."""
        contract = self.contracts[name]
        given = {tensor.name: feeds[tensor.name] for tensor in contract.inputs}
        outputs = [tensor.name for tensor in contract.outputs]
        return dict(zip(outputs, self.sessions[name].run(outputs, given), strict=True))

    def prefix(self, f: Frame) -> Feeds:
        """Run the prefix of a frame, and the vision stage where the frame has pixels."""
        features = f.features
        if features is None:
            assert f.pixels is not None
            views = self.run("vision", {"images": f.pixels.reshape(-1, *f.pixels.shape[2:])})["image_features"]
            features = views.reshape(len(f.mask), -1, views.shape[-1])
        feeds = {"image_features": features, "token_ids": f.ids, "prefix_mask": f.mask}
        return self.run("prefix", feeds if f.state is None else {**feeds, "state": f.state})

    def velocity(self, f: Frame, prefix: Feeds, step: int) -> np.ndarray:
        """Run one step on the frame's own x_t."""
        batch = len(f.mask)
        time = np.repeat(f.time[step][None], batch, axis=0)
        feeds = {"x_t": f.x_t[step], "time_embedding": time, "prefix_mask": f.mask, **prefix}
        return self.run("denoise", feeds if f.state is None else {**feeds, "state": f.state})["velocity"]
