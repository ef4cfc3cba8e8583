"""What the format_*.py modules of make_formats.py share: the output folder, the versions and how a file is written."""

import json
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "formats"
TOOLS = ["torch", "ml_dtypes", "nvidia-modelopt", "compressed-tensors", "onnx", "onnxruntime", "numpy"]
Arrays = dict[str, Any]


def plain(tensor: Any) -> np.ndarray:
    """Return a contiguous NumPy array; 8-bit floats become their uint8 codes."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 and tensor.is_floating_point() else tensor
        tensor = tensor.detach().numpy()
    array = np.ascontiguousarray(tensor)
    return array.view(np.uint8) if array.dtype.name.startswith("float8") else array


def save_golden(path: Path, arrays: Arrays, metadata: dict[str, str]) -> None:
    """Write a safetensors file whose bytes depend on the contents alone: the writer leaves metadata in random order."""
    save_file({key: plain(value) for key, value in sorted(arrays.items())}, path, metadata=metadata)
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
    path.chmod(0o644)


def write(name: str, arrays: Arrays, more_rules: dict[str, str] | None = None) -> None:
    """Write one golden file with its versions and the rules of format_rules.toml."""
    texts = tomllib.loads((Path(__file__).parent / "format_rules.toml").read_text()).get(name, {})
    rules = {key: " ".join(text.split()) for key, text in texts.items()} | (more_rules or {})
    metadata = {"versions": json.dumps({tool: version(tool) for tool in TOOLS}), "rules": json.dumps(rules)}
    path = OUT / f"{name}.safetensors"
    save_golden(path, arrays, metadata)
    print(f"{path.name}: {len(arrays)} arrays, {path.stat().st_size} bytes")
