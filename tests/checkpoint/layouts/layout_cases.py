"""What the tests of other tools' layouts share: goldens of those tools, stored tensors made of arrays, slow packing."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from conftest import MakeEngine, relative_error
from edgewright.checkpoint import open_checkpoint
from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.tensor import DTYPES, MappedTensor, StoredTensor
from edgewright.errors import EdgewrightError
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import stored_recipe
from edgewright.runtime.session import Session

GOLDENS = Path(__file__).parents[2] / "goldens" / "prequantized"
Arrays = Mapping[str, np.ndarray]


def assert_one_sentence(error: EdgewrightError, *parts: str) -> None:
    """Check that the message is one sentence with these parts in it."""
    text = str(error)
    assert text.endswith("."), text
    assert not re.search(r"[.!?]\s|\n", text), text
    assert all(part in text for part in parts), text


def cases(*prefixes: str) -> list[str]:
    """The goldens whose names begin alike."""
    return sorted(path.name for path in GOLDENS.iterdir() if path.is_dir() and path.name.startswith(prefixes))


def expected(case: str) -> dict[str, np.ndarray]:
    return {name: tensor.read() for name, tensor in read_safetensors(GOLDENS / case / "expected.safetensors").items()}


def stored(name: str, values: np.ndarray, dtype: str | None = None) -> StoredTensor:
    """An array as a tensor of a file; `dtype` where bytes stand for something else."""
    kind = dtype or str(values.dtype)
    assert DTYPES[kind].itemsize == values.itemsize
    return MappedTensor(name, values.shape, kind, np.frombuffer(values.tobytes(), np.uint8))


def tensors(arrays: Arrays) -> dict[str, StoredTensor]:
    return {name: stored(name, values) for name, values in arrays.items()}


def as_trained(tensor: StoredTensor) -> np.ndarray:
    """A weight as floats for the input as it is: read in uneven runs, permuted columns put back."""
    rows, step = tensor.shape[0], tensor.encoding.row_step if tensor.encoding is not None else 1
    cuts = sorted({0, min(rows, step), rows // 3 // step * step, rows // 2, rows})
    parts = [tensor.rows(a, b) for a, b in itertools.pairwise(cuts)]
    values = np.concatenate(parts)
    np.testing.assert_array_equal(tensor.rows(rows - 1, rows), values[-1:])
    assert tensor.rows(0, 0).shape == (0, tensor.shape[1])
    if tensor.input is None or tensor.input.permutation is None:
        return values
    result = np.empty_like(values)
    result[:, tensor.input.permutation] = values
    return result


def check_weights(case: str) -> None:
    """Every dequantized weight is the tool's, bit for bit."""
    checkpoint = open_checkpoint(GOLDENS / case)
    wanted = json.loads((GOLDENS / case / "case.json").read_text())["weights_sha256"]
    encoded = {name for name, tensor in checkpoint.tensors.items() if tensor.encoding is not None}
    assert encoded == {f"{module}.weight" for module in wanted}
    for module, digest in wanted.items():
        values = as_trained(checkpoint.tensors[f"{module}.weight"]) + np.float32(0)
        assert hashlib.sha256(values.astype("<f4").tobytes()).hexdigest() == digest, module
    for name, values in expected(case).items():
        if name.startswith("weight."):
            tensor = checkpoint.tensors[f"{name.removeprefix('weight.')}.weight"]
            np.testing.assert_array_equal(as_trained(tensor), values)


def check_logits(case: str, make_engine: MakeEngine) -> None:
    """The float graph computes the reference's logits."""
    reference = expected(case)
    session = Session(make_engine(open_checkpoint(GOLDENS / case), "portable"))
    got = session.append(reference["ids"][0], logits="all")
    assert relative_error(got, reference["logits"][0]) < 1e-5


def check_taken_over(case: str) -> None:
    """The recipe `stored` keeps the codes of every quantized weight."""
    checkpoint = open_checkpoint(GOLDENS / case)
    applied = {a.module: a for a in quantize_stage(build_llm(checkpoint), stored_recipe("stored"))}
    for name, tensor in checkpoint.tensors.items():
        if tensor.encoding is not None and ".experts." not in name:
            module = applied[name.removesuffix(".weight")]
            assert module.exact, name
            assert module.format == tensor.encoding
            assert module.stored == tensor.encoding.label


def stream(codes: Sequence[int], bits: int) -> list[int]:
    """The signed 32-bit words of a dense stream, by one large number."""
    number = sum(int(code) << (bits * i) for i, code in enumerate(codes))
    count = -(-len(codes) * bits // 32)
    words = [(number >> (32 * i)) & 0xFFFFFFFF for i in range(count)]
    return [word - (1 << 32) if word >> 31 else word for word in words]


def down(codes: np.ndarray, bits: int) -> np.ndarray:
    """int32 `[n * bits / 32, m]` of codes `[n, m]`, each column a stream."""
    return np.array([stream(column, bits) for column in codes.T], np.int32).T


def along(codes: np.ndarray, bits: int) -> np.ndarray:
    """int32 `[n, m * bits / 32]` of codes `[n, m]`, each row a stream."""
    return np.array([stream(row, bits) for row in codes], np.int32)
