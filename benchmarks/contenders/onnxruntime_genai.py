"""onnxruntime-genai: graphs from its own model builder, run by its own generator."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from contenders.base import Engine, Options, Timing


class Genai(Engine):
    """A generator per prompt, its key/value cache allocated for the whole capacity before the clock starts."""

    packages = ("onnxruntime-genai", "onnxruntime", "numpy")
    modules = ("onnxruntime_genai",)

    @staticmethod
    def prepare(checkpoint: Path, out: Path, recipe: Options) -> None:
        extra = [f"{key}={value}" for key, value in recipe.get("extra", {}).items()]
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint, "-o", out]
            command += ["-p", recipe["precision"], "-e", "cpu", "-c", cache]
            if extra:
                command += ["--extra_options", *extra]
            subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})

    def __init__(self, path: Path, options: Options, threads: int, capacity: int) -> None:
        import onnxruntime_genai

        self.og = onnxruntime_genai
        config = self.og.Config(str(path))
        session = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self.model = self.og.Model(config)
        self.params = self.og.GeneratorParams(self.model)
        # A minimum equal to the maximum keeps an end token from stopping a run.
        self.params.set_search_options(max_length=capacity, min_length=capacity, do_sample=False, batch_size=1)

    def generate(self, ids: list[int], count: int) -> Timing:
        generator = self.og.Generator(self.model, self.params)
        prompt = np.array(ids, dtype=np.int32)
        begin = time.perf_counter()
        generator.append_tokens(prompt)
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(count - 1):
            generator.generate_next_token()
        return Timing(first - begin, time.perf_counter() - first)

    def logits(self, ids: list[int]) -> np.ndarray:
        # The head is pruned to the last position, so the text is fed token by token, as in decoding.
        generator = self.og.Generator(self.model, self.params)
        rows = []
        for token in ids:
            generator.append_tokens(np.array([token], dtype=np.int32))
            rows.append(np.array(generator.get_output("logits"), dtype=np.float32).reshape(1, -1))
        return np.concatenate(rows)


ENGINE = Genai
