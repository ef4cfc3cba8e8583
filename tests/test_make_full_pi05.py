"""The random pi0.5 of full size: the same tensors as openpi's file, in bounded memory, and it deploys."""

from __future__ import annotations

import importlib.util
import math
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import policy_goldens as goldens
from edgewright.checkpoint.policy import PolicyOptions, open_policy
from edgewright.checkpoint.safetensors import read_safetensors

SCRIPT = Path(__file__).parent.parent / "tools" / "make_full_pi05.py"
LIBERO = goldens.POLICY_GOLDENS / "pi05_libero" / "checkpoint" / "model.safetensors"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_full_pi05", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def stored(path: Path) -> dict[str, np.ndarray]:
    return {name: np.asarray(tensor.read(), np.float32) for name, tensor in read_safetensors(path).items()}


def test_the_tensors_are_those_of_openpi(script: ModuleType) -> None:
    """With the sizes of a golden that openpi's classes made, names and shapes are the golden's."""
    size = script.Size(42, 48, 2, 36, 40, 52, 32, 44, 3, 16, 420, 10, "bfloat16")
    wanted = {name: tuple(tensor.shape) for name, tensor in read_safetensors(LIBERO).items()}
    assert script.shapes(size) == wanted


def test_the_full_size_is_that_of_pi05(script: ModuleType) -> None:
    full, race = (script.shapes(script.SIZES[name]) for name in ("full", "race"))

    def count(shapes: dict[str, tuple[int, ...]], part: str = "") -> int:
        return sum(math.prod(shape) for name, shape in shapes.items() if part in name)

    assert count(full) == 3_353_433_872 + 257_152 * 1024
    assert count(full, "vision_tower") == 412_442_352
    assert full["paligemma_with_expert.gemma_expert.model.layers.17.input_layernorm.dense.weight"] == (3072, 1024)
    assert 0.2e9 < count(race) < 0.23e9


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_seed_decides_over_every_value(script: ModuleType, tmp_path: Path, dtype: str) -> None:
    size = script.SIZES["tiny"]
    for name, seed in (("one", 3), ("again", 3), ("other", 4)):
        script.write(tmp_path / name, size, seed=seed, dtype=dtype)
    one, again, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "again", "other"))
    assert one == again != other
    first, second = (stored(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    assert all((first[name] != second[name]).mean() > 0.9 for name in first)
    assert {tensor.dtype for tensor in read_safetensors(tmp_path / "one" / "model.safetensors").values()} == {dtype}


def test_values_are_of_a_healthy_size(script: ModuleType, tmp_path: Path) -> None:
    script.write(tmp_path / "tiny", script.SIZES["tiny"])
    for name, values in stored(tmp_path / "tiny" / "model.safetensors").items():
        scale, mean = script.scale_and_mean(name, values.shape)
        assert abs(values.mean() - mean) < 5 * scale / math.sqrt(values.size), name
        if values.size > 500:
            assert 0.85 * scale < values.std() < 1.15 * scale, name


def test_blocks_join_to_the_same_values(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (37, 41)

    def values() -> Any:
        return list(script.blocks("a.q_proj.weight", shape, np.dtype(np.float32), 5))

    (whole,) = values()
    monkeypatch.setattr(script, "BLOCK", 500)
    parts = values()
    assert [part.size for part in parts] == [500, 500, 500, 17]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert abs(whole.std() * math.sqrt(41) - 1.5) < 0.1


def test_memory_follows_the_block(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "BLOCK", 1 << 14)
    size = script.Size(28, 32, 1, 36, 24, 44, 20, 36, 1, 8, 200_000, 5, "float32")
    tracemalloc.start()
    script.write(tmp_path / "wide", size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    written = (tmp_path / "wide" / "model.safetensors").stat().st_size
    assert written > 35e6
    assert peak < 2e6


def test_it_opens_as_a_policy(script: ModuleType, tmp_path: Path) -> None:
    count = script.write(tmp_path / "tiny", script.SIZES["tiny"])
    options = PolicyOptions(tokenizer=goldens.TOKENIZER, discrete_state=True)
    checkpoint = open_policy(tmp_path / "tiny", options)
    assert (checkpoint.kind, checkpoint.spec.convention, checkpoint.spec.horizon) == ("pi05", "openpi", 12)
    assert (checkpoint.spec.state_dim, checkpoint.spec.action_dim) == (script.ROBOT_STATE, script.ROBOT_ACTION)
    assert [name for name, _ in checkpoint.ignored] == ["paligemma_with_expert.gemma_expert.lm_head.weight"]
    assert sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values()) == count
