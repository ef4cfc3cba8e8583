"""Write tests/goldens/algorithms/: what GPTQ, AWQ, SmoothQuant and MSE clipping of other tools reach on real layers.

    python make_algorithms.py data WORK MODEL      # activations of MODEL (a folder, make_smollm2.py --save-fp32), 20 s
    python make_algorithms.py modelopt WORK        # each in the environment of that tool, requirements_quant.txt
    python make_algorithms.py gptqmodel WORK
    python make_algorithms.py llmcompressor WORK
    python make_algorithms.py collect WORK         # writes the golden files

A layer is W [rows, columns], float16 values, and X [tokens, columns] of 2,048 calibration tokens. The golden holds
`weight`, `hessian` (the upper triangle of X^T X by rows, float32), `mean_abs`, `amax`, `mean` of X by channel, and
`held_out` (64 further rows of X, float16). Metadata `results`: a JSON object from TOOL.CASE to the settings, `error` =
tr((W - Q) H (W - Q)^T) / tr(W H W^T), `held_out_error` (the same with the Gram matrix of `held_out`), and more.
"""

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from format_common import save_golden
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "goldens" / "algorithms"
TEXT = ROOT / "benchmarks" / "data" / "text.txt"
TOOLS = ("modelopt", "gptqmodel", "llmcompressor")
# name: module, rows, columns; slices keep the golden files small, a slice of the columns is a layer of its own
LAYERS = {
    "q_proj": ("model.layers.10.self_attn.q_proj", slice(0, 96), slice(0, 576)),
    "down_proj": ("model.layers.10.mlp.down_proj", slice(0, 112), slice(0, 512)),
    "gate_proj": ("model.layers.20.mlp.gate_proj", slice(0, 128), slice(0, 256)),
}
TOKENS, SEQUENCE = 2048, 512


def dithered(weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the weights plus noise of one step of their 4-bit file format, as float16 values.

    The checkpoint comes from a Q4_1 file (blocks of 32): without the noise a grid of groups of 32 could represent it
    almost exactly, and every comparison would be void.
    """
    blocks = weight.reshape(weight.shape[0], -1, 32)
    step = (blocks.max(-1, keepdims=True) - blocks.min(-1, keepdims=True)) / 15
    noisy = blocks + rng.uniform(-0.5, 0.5, blocks.shape) * step
    return noisy.reshape(weight.shape).astype(np.float16)


def data(work: Path, model_folder: Path) -> None:
    """Save weight, calibration and held-out activations of LAYERS to WORK/data.safetensors."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    ids = tokenizer(TEXT.read_text(), return_tensors="pt")["input_ids"][0]
    print(f"{len(ids)} tokens")
    caught: dict[str, list[torch.Tensor]] = {name: [] for name in LAYERS}
    for name, (path, _, _) in LAYERS.items():
        hook = lambda _m, args, name=name: caught[name].append(args[0][0].detach())  # noqa: E731
        model.get_submodule(path).register_forward_pre_hook(hook)
    with torch.no_grad():
        for start in range(0, TOKENS, SEQUENCE):
            model(ids[start : start + SEQUENCE][None])
        model(ids[TOKENS - 200 :][None])
    rng = np.random.default_rng(0)
    out: dict[str, np.ndarray] = {}
    for name, (path, rows, columns) in LAYERS.items():
        weight = model.get_submodule(path).weight.detach().numpy()
        out[f"{name}.weight"] = dithered(weight, rng)[rows, columns].copy()
        out[f"{name}.inputs"] = torch.cat(caught[name][:-1])[:, columns].numpy().copy()
        held_out = caught[name][-1][200:264, columns].numpy()
        assert held_out.shape[0] == 64, "the text is too short for 64 held-out tokens"
        out[f"{name}.held_out"] = held_out.astype(np.float16)
    save_file(out, work / "data.safetensors")


class Layer:
    """One layer of WORK/data.safetensors as float32 tensors, and the errors of a quantized weight."""

    def __init__(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        self.name = name
        self.weight = torch.tensor(arrays[f"{name}.weight"].astype(np.float32))
        self.inputs = torch.tensor(arrays[f"{name}.inputs"])
        self.held_out = torch.tensor(arrays[f"{name}.held_out"].astype(np.float32))

    def linear(self) -> torch.nn.Linear:
        """Return a new linear layer with the weight."""
        module = torch.nn.Linear(self.weight.shape[1], self.weight.shape[0], bias=False)
        module.weight.data = self.weight.clone()
        return module

    def batches(self) -> torch.Tensor:
        """Return the calibration inputs [sequences, SEQUENCE, columns]."""
        return self.inputs.reshape(-1, SEQUENCE, self.inputs.shape[1])

    def errors(self, quantized: torch.Tensor) -> dict[str, float]:
        """Return the relative output errors on the calibration and the held-out inputs (float64 sums)."""
        weight, difference = self.weight.double(), (self.weight - quantized.float()).double()
        result = {}
        for key, inputs in (("error", self.inputs.double()), ("held_out_error", self.held_out.double())):
            wanted, wrong = inputs @ weight.T, inputs @ difference.T
            result[key] = float(wrong.square().sum() / wanted.square().sum())
        result["weight_error"] = float(difference.square().sum() / weight.square().sum())
        return result


def layers(work: Path) -> list[Layer]:
    """Return all layers of WORK."""
    arrays = load_file(work / "data.safetensors")
    return [Layer(name, arrays) for name in LAYERS]


def collect(work: Path) -> None:
    """Write one golden file per layer from WORK/data.safetensors and WORK/TOOL.json, WORK/TOOL.safetensors."""
    reports = {
        tool: json.loads((work / f"{tool}.json").read_text()) for tool in TOOLS if (work / f"{tool}.json").exists()
    }
    versions = {tool: report["versions"] for tool, report in reports.items()}
    extra: dict[str, np.ndarray] = {}
    for tool in reports:
        if (work / f"{tool}.safetensors").exists():
            extra |= {f"{tool}.{key}": value for key, value in load_file(work / f"{tool}.safetensors").items()}
    OUT.mkdir(parents=True, exist_ok=True)
    for layer in layers(work):
        x = layer.inputs.numpy()
        gram = x.T.astype(np.float64) @ x.astype(np.float64)
        arrays = {
            "weight": layer.weight.numpy().astype(np.float16),
            "hessian": gram.astype(np.float32)[np.triu_indices(len(gram))],
            "mean_abs": np.abs(x).mean(0),
            "amax": np.abs(x).max(0),
            "mean": x.mean(0),
            "held_out": layer.held_out.numpy().astype(np.float16),
        }
        for key, value in extra.items():
            tool, name, rest = key.split(".", 2)
            if name == layer.name:
                arrays[f"{tool}.{rest}"] = value
        results = {
            f"{tool}.{case}": r for tool, rep in reports.items() for case, r in rep["results"][layer.name].items()
        }
        path, rows, columns = LAYERS[layer.name]
        where = f"SmolLM2-135M-Instruct {path}[{rows.start}:{rows.stop}, {columns.start}:{columns.stop}], dithered"
        metadata = {
            "layer": where,
            "tokens": str(len(x)),
            "versions": json.dumps(versions),
            "results": json.dumps(results),
        }
        file = OUT / f"{layer.name}.safetensors"
        save_golden(file, arrays, metadata)
        print(f"{file.name}: {file.stat().st_size} bytes, {len(results)} results")


def main() -> int:
    """Run one step; see the module's text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=("data", "collect", *TOOLS))
    parser.add_argument("work", type=Path)
    parser.add_argument("model", type=Path, nargs="?")
    given: Any = parser.parse_args()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    if given.step == "data":
        data(given.work, given.model)
    elif given.step == "collect":
        collect(given.work)
    else:
        tool = import_module(f"algorithms_{given.step}")
        results: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        for layer in layers(given.work):
            results[layer.name] = tool.run(layer, arrays)
            for case, result in results[layer.name].items():
                print(layer.name, case, {k: v for k, v in result.items() if not isinstance(v, dict | list)}, flush=True)
        report = {"versions": tool.versions(), "results": results}
        (given.work / f"{given.step}.json").write_text(json.dumps(report))
        if arrays:
            save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, given.work / f"{given.step}.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
