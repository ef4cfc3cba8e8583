"""edgewright itself: `edgewright deploy` and its Python session."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from contenders.base import Contents, Options, SteppedEngine

WEIGHT_FILES = ("weights.bin", "engine.bin")


def _format(module: dict[str, Any]) -> str:
    """Name the format of one entry of the manifest's recipe."""
    if "bits" not in module:
        if "element" in module:
            return f"{module['element']} {module['scope']}"
        return str(module.get("format") or module.get("dtype"))
    name = f"int{module['bits']} group {module['group']}" + (" zero point" if module.get("zero_point") else "")
    return name + (" int8 inputs" if module.get("int8_activations") else "")


class Edgewright(SteppedEngine):
    """A bundle made by the command line and driven through `LLM.session`."""

    packages = ("edgewright", "onnxruntime", "numpy")
    modules = ("edgewright", "onnxruntime")

    @staticmethod
    def prepare(checkpoint: Path, out: Path, recipe: Options) -> None:
        command = Path(sys.executable).with_name("edgewright")
        source = (checkpoint / recipe.get("source", ".")).resolve()
        weights = recipe["recipe"]
        if weights.endswith(".yaml"):  # an absolute path stays as it is
            weights = str(Path(__file__).parent.parent / weights)
        engine = ["--engine", recipe["engine"]] if "engine" in recipe else []
        # The race measures quality itself.
        subprocess.run([command, "deploy", source, "-o", out, "--recipe", weights, "--no-verify", *engine], check=True)

    @staticmethod
    def contents(path: Path) -> Contents:
        files = [file for file in path.rglob("*.bin") if file.name in WEIGHT_FILES]
        modules = json.loads((path / "manifest.json").read_text())["recipe"]["modules"]
        return {"bytes": sum(file.stat().st_size for file in files), "types": dict(Counter(map(_format, modules)))}

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
