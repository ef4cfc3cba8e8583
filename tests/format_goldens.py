"""Arrays that other tools computed, of tests/goldens/formats; tools/goldens/make_formats.py says how and with what."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import ml_dtypes
import numpy as np

FOLDER = Path(__file__).parent / "goldens" / "formats"
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_DTYPES = {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "I8": np.int8}


@functools.cache
def arrays(name: str) -> dict[str, np.ndarray]:
    """Return a golden file's arrays."""
    data = (FOLDER / f"{name}.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    found = {}
    for key, entry in json.loads(data[8 : 8 + size]).items():
        if key != "__metadata__":
            first, stop = (8 + size + at for at in entry["data_offsets"])
            found[key] = np.frombuffer(data[first:stop], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return found


def matrices() -> dict[str, np.ndarray]:
    """Return the matrices all tools were given, float32."""
    return {name: array.astype(np.float32) for name, array in arrays("inputs").items()}


def having(name: str, kind: str) -> list[str]:
    """Return the names of the matrices a golden file has results of the kind `kind` of."""
    return [matrix for matrix in matrices() if any(key.startswith(f"{matrix}.{kind}.") for key in arrays(name))]
