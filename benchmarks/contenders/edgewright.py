"""edgewright itself: `edgewright deploy` and its Python session."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from contenders.base import Options, SteppedEngine


class Edgewright(SteppedEngine):
    """A bundle made by the command line and driven through `LLM.session`."""

    packages = ("edgewright", "onnxruntime", "numpy")
    modules = ("edgewright", "onnxruntime")

    @staticmethod
    def prepare(checkpoint: Path, out: Path, recipe: Options) -> None:
        command = Path(sys.executable).with_name("edgewright")
        source = (checkpoint / recipe.get("source", ".")).resolve()
        weights = recipe["recipe"]
        if weights.endswith(".yaml"):
            weights = str(Path(__file__).parent.parent / weights)
        # The race measures quality itself.
        subprocess.run([command, "deploy", source, "-o", out, "--recipe", weights, "--no-verify"], check=True)

    def __init__(self, path: Path, options: Options, threads: int, capacity: int) -> None:
        from edgewright import LLM

        self.llm = LLM.load(path, threads=threads)
        self.session = self.llm.session(batch=1)

    def start(self, ids: list[int]) -> int:
        self.session.truncate(0)
        return int(self.session.append(ids, logits="last")[0].argmax())

    def step(self, token: int) -> int:
        return int(self.session.append([token], logits="last")[0].argmax())

    def logits(self, ids: list[int]) -> np.ndarray:
        self.session.truncate(0)
        return self.session.append(ids, logits="all")


ENGINE = Edgewright
