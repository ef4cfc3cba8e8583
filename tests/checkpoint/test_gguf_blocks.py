"""Block formats, bit for bit against the gguf package, on every byte pattern that random data gives."""

from __future__ import annotations

import tracemalloc

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from edgewright.checkpoint.gguf_blocks import BLOCK_FORMATS


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_random_bytes_decode_to_the_same_bits(name: str, seed: int) -> None:
    block = BLOCK_FORMATS[name]
    data = np.random.default_rng(seed).integers(0, 256, size=(37, 3 * block.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantize(data, gguf.GGMLQuantizationType[name])
        got = block.decode_rows(data)
    assert got.shape == (37, 3 * block.block_size)
    # Random scales include not-a-number, whose sign bit means nothing.
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), ~number)
    np.testing.assert_array_equal(got[number].view(np.uint32), expected[number].view(np.uint32))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_weights_decode_to_the_same_bits(name: str) -> None:
    weights = np.random.default_rng(3).normal(size=(5, 96)).astype(np.float32)
    data = quantize(weights, gguf.GGMLQuantizationType[name])
    got = BLOCK_FORMATS[name].decode_rows(data)
    np.testing.assert_array_equal(got, dequantize(data, gguf.GGMLQuantizationType[name]))
    assert np.abs(got - weights).max() < 0.4


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_sizes_are_those_of_ggml(name: str) -> None:
    block = BLOCK_FORMATS[name]
    assert (block.block_size, block.block_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


@pytest.mark.parametrize("name", ["Q4_1", "Q3_K", "Q6_K"])
def test_memory_is_the_output_and_little_more(name: str) -> None:
    block = BLOCK_FORMATS[name]
    data = np.zeros((64, 32768 // block.block_size * block.block_bytes), np.uint8)
    tracemalloc.start()
    out = block.decode_rows(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < out.nbytes + (4 << 20)


def test_no_rows() -> None:
    assert BLOCK_FORMATS["Q4_K"].decode_rows(np.zeros((0, 288), np.uint8)).size == 0
