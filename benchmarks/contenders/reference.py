"""The float32 reference: transformers and torch. It takes no part in the race; it says what the logits should be."""

from pathlib import Path
from typing import Any

import numpy as np

from contenders.base import Engine, Options, Timing


class Reference(Engine):
    """Eager float32 transformers; with the option `checkpoint`, its graph with the weights of `path / "model.gguf"`."""

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
        source = Path(options.get("checkpoint", path))
        self.model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, local_files_only=True).eval()
        if source != path:
            self._replace_weights(source, path / "model.gguf")

    def _replace_weights(self, checkpoint: Path, file: Path) -> None:
        from contenders.gguf_from_hf import read_gguf

        parameters = dict(self.model.named_parameters())
        with self.torch.no_grad():
            for name, values in read_gguf(checkpoint, file):
                parameters[name].copy_(self.torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)))

    def generate(self, ids: list[int], count: int) -> Timing:
        raise NotImplementedError("the reference is not timed")

    def logits(self, ids: list[int]) -> np.ndarray:
        with self.torch.no_grad():
            return self.model(input_ids=self.torch.tensor([ids])).logits[0].numpy()

    def mean_squares(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return, for every linear layer, the mean over all tokens of the square of each of its inputs, float32."""
        sums: dict[str, Any] = {}

        def watch(name: str) -> Any:
            def hook(module: Any, inputs: Any, output: Any) -> None:
                squares = inputs[0].double().square().flatten(0, -2).sum(dim=0)
                sums[name] = sums.get(name, 0) + squares

            return hook

        linear = [(name, part) for name, part in self.model.named_modules() if isinstance(part, self.torch.nn.Linear)]
        handles = [part.register_forward_hook(watch(name + ".weight")) for name, part in linear]
        for row in rows:
            self.logits(row.tolist())
        for handle in handles:
            handle.remove()
        return {name: (total / rows.size).numpy().astype(np.float32) for name, total in sums.items()}


ENGINE = Reference
