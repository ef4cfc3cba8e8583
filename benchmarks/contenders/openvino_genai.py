"""openvino-genai: models from optimum-intel and NNCF, run by LLMPipeline with its default settings."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from contenders.base import Contents, Engine, Options, Timing

MODEL = "openvino_model.xml"
CALIBRATION = "calibration-ids.npy"
"""Beside the checkpoint: windows of token ids, int64."""


class OpenVino(Engine):
    """LLMPipeline for speed (paged attention, 8-bit cache); the same weights run as a plain graph for the logits."""

    packages = ("openvino", "openvino-genai", "nncf", "optimum-intel", "numpy")
    modules = ("openvino", "openvino_genai")

    @staticmethod
    def prepare(checkpoint: Path, out: Path, recipe: Options) -> None:
        if settings := recipe.get("nncf"):
            _compress(checkpoint, out, settings, recipe.get("calibration", "none"))
            return
        command: list[Any] = [Path(sys.executable).with_name("optimum-cli"), "export", "openvino"]
        command += ["--model", checkpoint, "--task", "text-generation-with-past", *recipe["arguments"], out]
        subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})

    @staticmethod
    def contents(path: Path) -> Contents:
        import openvino

        model = openvino.Core().read_model(path / MODEL)
        sizes: Counter[str] = Counter()
        for node in model.get_ordered_ops():
            if node.get_type_name() == "Constant":
                sizes[node.get_element_type().get_type_name()] += node.get_byte_size()
        file = (path / MODEL).with_suffix(".bin")
        return {"bytes": file.stat().st_size, "types": dict(sizes.most_common())}

    def __init__(self, path: Path, options: Options, threads: int, capacity: int) -> None:
        import openvino
        import openvino_genai

        self.path = path
        self.openvino = openvino
        self.properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        self.model: Any = None
        if options.get("float"):  # nothing is rounded but the weights
            self.properties |= {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
            self.properties |= {"KV_CACHE_PRECISION": "f32"}
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
        if self.model is None:
            self.model = self.openvino.Core().compile_model(self.path / MODEL, "CPU", self.properties)
        request = self.model.create_infer_request()  # a new request has an empty cache
        request.infer(_inputs(self.model, ids))
        return np.array(request.get_tensor("logits").data[0], dtype=np.float32)


def _inputs(model: Any, ids: list[int]) -> dict[str, np.ndarray]:
    """Return what a plain graph takes for a prompt, less what this one has no input for."""
    names = {name for port in model.inputs for name in port.get_names()}
    count = len(ids)
    inputs: dict[str, np.ndarray] = {
        "input_ids": np.array([ids], dtype=np.int64),
        "attention_mask": np.ones((1, count), dtype=np.int64),
        "position_ids": np.arange(count, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, dtype=np.int32),
    }
    return {name: value for name, value in inputs.items() if name in names}


def _compress(checkpoint: Path, out: Path, settings: Options, calibration: str) -> None:
    """Compress the float32 graph, exported once, by NNCF with the calibration windows beside the checkpoint.

    `calibration` names the windows: the statistics of one set of windows are taken once.
    """
    import nncf
    import openvino
    from nncf.quantization.advanced_parameters import GroupSizeFallbackMode

    plain = out.with_name("openvino_genai-float32")
    if not (plain / MODEL).exists():
        OpenVino.prepare(checkpoint, plain, {"arguments": ["--weight-format", "fp32"]})
    model = openvino.Core().read_model(plain / MODEL)
    rows = np.load(checkpoint.parent / CALIBRATION)
    arguments = {key: value for key, value in settings.items() if key != "mode"}
    advanced: Options = {"group_size_fallback_mode": GroupSizeFallbackMode.ADJUST}
    if settings.get("awq"):
        advanced["statistics_path"] = str(out.with_name(f"openvino_genai-statistics-{calibration}"))
        arguments["dataset"] = nncf.Dataset([_inputs(model, row.tolist()) for row in rows])
        arguments["subset_size"] = len(rows)
    compressed = nncf.compress_weights(
        model,
        mode=nncf.CompressWeightsMode[settings["mode"]],
        ratio=1.0,
        advanced_parameters=nncf.AdvancedCompressionParameters(**advanced),
        **arguments,
    )
    out.mkdir(parents=True)
    openvino.save_model(compressed, out / MODEL, compress_to_fp16=False)


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
