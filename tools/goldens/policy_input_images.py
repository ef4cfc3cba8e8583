"""The part of make_policy_inputs.py about images; as a script: openpi's JAX resize, with the real JAX, alone.

python tools/goldens/policy_input_images.py OPENPI TARGET.safetensors
"""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from safetensors.numpy import save_file

# name, height and width of the input, height and width of the result, every how many-th pixel of the result is kept
IMAGES = [
    ("grow", (21, 34), (56, 56), 1),
    ("odd", (37, 53), (28, 28), 1),
    ("odd_grow", (37, 53), (56, 56), 3),
    ("tall", (61, 23), (28, 28), 1),
    ("square", (50, 50), (28, 28), 1),
    ("short_by_one", (58, 44), (28, 28), 1),  # 58 / (58 / 28) is below 28 in float64
    ("same", (28, 28), (28, 28), 1),
    ("one_row", (1, 20), (28, 28), 1),
    ("one_column", (20, 1), (28, 28), 1),
    ("tiny", (2, 3), (28, 28), 1),
    ("wide_target", (30, 41), (20, 36), 1),
    ("camera", (480, 640), (56, 56), 2),
    ("camera_224", (480, 640), (224, 224), 7),
    ("too_flat", (1, 80), (28, 28), 1),
]


def attempt(function: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return the result, or the kind and the text of the exception."""
    try:
        return function(), None
    except Exception as error:  # what the original raises is part of the golden
        return None, f"{type(error).__name__}: {error}"


class Arrays:
    """The arrays of inputs.safetensors; `add` returns what inputs.json says about one."""

    def __init__(self) -> None:
        self.found: dict[str, np.ndarray] = {}

    def add(self, name: str, value: Any) -> str:
        self.found[name] = np.ascontiguousarray(value)
        return name


def picture(name: str, height: int, width: int) -> np.ndarray:
    """Return the uint8 input image of a case; the large ones follow the formula that inputs.json states."""
    if height * width > 10_000:
        y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
        return ((3 * y * y + 5 * x * x + 7 * x * y + 8300 * c) // 512 % 256).astype(np.uint8)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def results(image: np.ndarray, height: int, width: int) -> dict[str, Callable[[], Any]]:
    """Return the resize functions of both projects with their inputs bound, each with its scaling to -1..1."""
    import torch
    from lerobot.policies.common import vla_utils
    from openpi.shared import image_tools
    from openpi_client import image_tools as client

    unit = (torch.from_numpy(image).to(torch.float32) / 255)[None]
    signed = torch.from_numpy(image)[None].to(torch.float32) / 255.0 * 2.0 - 1.0
    first = unit.permute(0, 3, 1, 2).contiguous()

    def center() -> Any:
        return (vla_utils.resize_with_pad_torch(unit, height, width) * 2.0 - 1.0)[0].permute(2, 0, 1)

    def left_top() -> Any:
        return (vla_utils.resize_with_pad(first, height, width, pad_value=0) * 2.0 - 1.0)[0]

    return {
        "pil_uint8": lambda: client.resize_with_pad(image, height, width),
        "openpi_torch": lambda: image_tools.resize_with_pad_torch(signed, height, width).squeeze(0),
        "lerobot_center": center,
        "lerobot_left_top": left_top,
    }


def jax_images(openpi: Path, target: Path) -> None:
    """Write the results of openpi's JAX resize for uint8 and for float32 in -1..1 (runs alone, with the real JAX)."""
    import jax

    annotation = type("Annotation", (dict,), {"__missing__": lambda _, key: Any})
    types = ModuleType("openpi.shared.array_typing")
    vars(types).update(Array=jax.Array, Float=annotation(), UInt8=annotation(), typecheck=lambda function: function)
    for name in ("openpi", "openpi.shared"):
        sys.modules[name] = ModuleType(name)
    sys.modules["openpi.shared.array_typing"] = sys.modules["openpi.shared"].array_typing = types  # type: ignore[attr-defined]
    path = openpi / "src" / "openpi" / "shared" / "image_tools.py"
    spec = importlib.util.spec_from_file_location("image_tools", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {}
    for name, size, result, _ in IMAGES:
        image = picture(name, *size)
        for kind, pixels in (("uint8", image), ("float", image.astype(np.float32) / 255.0 * 2.0 - 1.0)):
            value, _ = attempt(partial(module.resize_with_pad, jax.numpy.asarray(pixels), *result))
            if value is not None:
                found[f"{name}/{kind}"] = np.asarray(value)
    save_file(found, target)


def image_cases(arrays: Arrays, jax: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the cases of resizing; each result has the shape [H, W, 3] (openpi) or [3, H, W] (lerobot)."""
    cases = []
    for name, size, result, stride in IMAGES:
        image = picture(name, *size)
        if image.size <= 30_000:
            source = {"tensor": arrays.add(f"image/{name}/input", image)}
        else:
            source = {"formula": "(3*y*y + 5*x*x + 7*x*y + 8300*c) // 512 % 256"}
        source["sha256"] = hashlib.sha256(image.tobytes()).hexdigest()
        case: dict[str, Any] = {"name": name, "input": source, "size": size, "target": result, "stride": stride}
        values = {kind: attempt(run) for kind, run in results(image, *result).items()}
        case["errors"] = {kind: error for kind, (_, error) in values.items() if error}
        full = {kind: np.asarray(value) for kind, (value, error) in values.items() if error is None}
        full |= {f"jax_{kind}": jax[f"{name}/{kind}"] for kind in ("uint8", "float") if f"{name}/{kind}" in jax}
        case["difference"] = differences(full)
        case["results"] = {}
        for kind, value in full.items():
            kept = value[:, ::stride, ::stride] if kind.startswith("lerobot") else value[::stride, ::stride]
            if kind == "openpi_torch" or (kind == "jax_float" and name != "odd"):
                continue  # openpi_torch equals lerobot_center but for the layout (see difference)
            case["results"][kind] = arrays.add(f"image/{name}/{kind}", kept)
        cases.append(case)
    return cases


def conversion_case(arrays: Arrays) -> list[dict[str, str]]:
    """Return what openpi's client makes of float images in 0..1."""
    from openpi_client import image_tools as client

    cases = []
    for dtype in ("float32", "float64"):
        values = np.concatenate([np.arange(256, dtype=dtype) / 255, np.linspace(0, 1, 101, dtype=dtype)])
        result = arrays.add(f"convert/{dtype}_uint8", client.convert_to_uint8(values))
        cases.append({"values": arrays.add(f"convert/{dtype}", values), "result": result})
    return cases


def differences(full: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the largest difference of every variant from lerobot's centered float one, in units of -1..1."""
    if "lerobot_center" not in full:
        return {}
    reference = full["lerobot_center"].astype(np.float64)
    found = {}
    for kind, value in full.items():
        pixels = value / 255 * 2 - 1 if value.dtype == np.uint8 else value.astype(np.float64)
        pixels = pixels if kind.startswith("lerobot") else pixels.transpose(2, 0, 1)
        found[kind] = round(float(np.abs(pixels - reference).max()), 7)
    return found


if __name__ == "__main__":
    jax_images(Path(sys.argv[1]), Path(sys.argv[2]))
