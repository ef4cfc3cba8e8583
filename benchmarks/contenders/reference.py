"""The float32 reference: transformers and torch. It takes no part in the race; it says what the logits should be."""

from pathlib import Path

import numpy as np

from contenders.base import Engine, Options, Timing


class Reference(Engine):
    """Eager float32 transformers."""

    packages = ("transformers", "torch", "numpy")
    modules = ("torch", "transformers")

    @staticmethod
    def prepare(checkpoint: Path, out: Path, recipe: Options) -> None:
        raise NotImplementedError("the reference reads the checkpoint itself")

    def __init__(self, path: Path, options: Options, threads: int, capacity: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()

    def generate(self, ids: list[int], count: int) -> Timing:
        raise NotImplementedError("the reference is not timed")

    def logits(self, ids: list[int]) -> np.ndarray:
        with self.torch.no_grad():
            return self.model(input_ids=self.torch.tensor([ids])).logits[0].numpy()


ENGINE = Reference
