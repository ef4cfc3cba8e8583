"""Messages as openpi's client packs them, and what is in them, for the tests of the policy server.

python make_wire.py   # with openpi-client 0.1.2 and typing_extensions; openpi-client wants NumPy 1
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from openpi_client import msgpack_numpy

FOLDER = Path(__file__).resolve().parents[2] / "tests/goldens/wire"


def cases() -> dict[str, dict[str, Any]]:
    """Return observations of openpi's three kinds of robots, and an answer with every type a message may hold."""
    rng = np.random.default_rng(20)
    pixels = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    numbers = rng.standard_normal(28)
    return {
        "libero": {
            "observation/image": pixels,
            "observation/wrist_image": np.asfortranarray(pixels[::2]),
            "observation/state": numbers[:8].astype(np.float32),
            "prompt": "put the bowl on the plate: déjà vu",
        },
        "droid": {
            "observation/exterior_image_1_left": pixels.transpose(2, 0, 1),
            "observation/joint_position": numbers[8:15],
            "observation/gripper_position": np.float32(numbers[15]),
            "prompt": b"open the drawer",
        },
        "aloha": {
            "images": {"cam_high": pixels.transpose(2, 0, 1).copy(), "cam_left_wrist": pixels / np.float32(255)},
            "state": numbers[14:28],
            "prompt": "",
        },
        "answer": {
            "actions": numbers[:21].reshape(3, 7),
            "policy_timing": {"infer_ms": 12.5},
            "server_timing": {"infer_ms": 13.25, "prev_total_ms": np.float64(40.0)},
            "half": numbers[:3].astype(np.float16),
            "flags": np.array([[True, False, True]]),
            "counts": np.arange(-2, 3, dtype=np.int64),
            "level": np.array(7, np.int16),
            "empty": np.zeros((0, 4), np.float32),
            "one": np.bool_(True),
            "big": np.uint64(2**64 - 1),
            "plain": [1, -1, 0.5, None, True, "x", b"y", [], {}],
        },
    }


def described(value: Any) -> Any:
    """Return a value as JSON that keeps its types."""
    if isinstance(value, dict):
        return {name: described(item) for name, item in value.items()}
    if isinstance(value, list):
        return [described(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": value.decode()}
    if isinstance(value, np.ndarray):
        return {"array": value.astype(object).ravel().tolist(), "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic) and not isinstance(value, float):
        return {"scalar": value.item(), "dtype": value.dtype.str}
    return value


def main() -> None:
    """Write a message per case, and what they hold as openpi's own reader gives it back."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, value in cases().items():
        message = msgpack_numpy.packb(value)
        (FOLDER / f"{name}.msgpack").write_bytes(message)
        text = json.dumps(described(msgpack_numpy.unpackb(message)), ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
