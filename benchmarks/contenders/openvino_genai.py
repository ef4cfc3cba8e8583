"""openvino-genai: models from optimum-intel and NNCF, run by LLMPipeline with its default settings."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from contenders.base import Engine, Options, Timing


class OpenVino(Engine):
    """LLMPipeline for speed (paged attention, 8-bit cache); the same weights run as a plain graph for the logits."""

    packages = ("openvino", "openvino-genai", "nncf", "optimum-intel", "numpy")
    modules = ("openvino", "openvino_genai")

    @staticmethod
    def prepare(checkpoint: Path, out: Path, recipe: Options) -> None:
        command: list[Any] = [Path(sys.executable).with_name("optimum-cli"), "export", "openvino"]
        command += ["--model", checkpoint, "--task", "text-generation-with-past", *recipe["arguments"], out]
        subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})

    def __init__(self, path: Path, options: Options, threads: int, capacity: int) -> None:
        import openvino
        import openvino_genai

        self.path = path
        self.openvino = openvino
        self.properties = {"INFERENCE_NUM_THREADS": threads}
        if not options.get("logits_only"):
            self.pipe = openvino_genai.LLMPipeline(path, "CPU", **self.properties)
            self.clock = _clock(openvino_genai)
            self.genai = openvino_genai

    def generate(self, ids: list[int], count: int) -> Timing:
        config = self.genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        prompt = self.openvino.Tensor(np.array([ids], dtype=np.int64))
        self.clock.times = []
        begin = time.perf_counter()
        self.pipe.generate(prompt, config, self.clock)
        times = self.clock.times
        if len(times) != count:
            raise RuntimeError(f"asked for {count} tokens, the pipeline gave {len(times)}")
        return Timing(times[0] - begin, times[-1] - times[0])

    def logits(self, ids: list[int]) -> np.ndarray:
        model = self.openvino.Core().compile_model(self.path / "openvino_model.xml", "CPU", self.properties)
        names = {name for port in model.inputs for name in port.get_names()}
        count = len(ids)
        inputs = {
            "input_ids": np.array([ids], dtype=np.int64),
            "attention_mask": np.ones((1, count), dtype=np.int64),
            "position_ids": np.arange(count, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        request = model.create_infer_request()
        request.infer({name: value for name, value in inputs.items() if name in names})
        return np.array(request.get_tensor("logits").data[0], dtype=np.float32)


def _clock(genai: Any) -> Any:
    """Return a streamer that notes when each token arrives; it decodes no text."""

    class Clock(genai.StreamerBase):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []

        def write(self, token: Any) -> Any:
            now = time.perf_counter()
            self.times += [now] if isinstance(token, int) else [now] * len(token)
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            return None

    return Clock()


ENGINE = OpenVino
