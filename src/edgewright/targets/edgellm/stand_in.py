"""Runs a stage of TensorRT Edge-LLM on the CPU, called as its runtime does: with pages, a page table and rope rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.contract import StageContract
from edgewright.errors import BundleError, GenerationError, first_line
from edgewright.quiet_ort import ort
from edgewright.runtime.engine import FOREIGN, Array
from edgewright.targets.edgellm.rewriting import load

#: Tokens of a page.
PAGE = 128
#: What an engine of these files is not known to do by running them here.
UNCHECKED = (
    "The plug-ins were computed by ONNX Runtime as they are defined, over the very bytes of the builder's folder: "
    "TensorRT Edge-LLM's builder, its CUDA kernels with their own roundings (of FP8 queries, too) and their speed were "
    "not checked."
)


class StandIn:
    """The engine of a stage; the caches it is bound to are put into pages before each call, and taken out after."""

    def __init__(self, graph: Path, contract: StageContract, config: Mapping[str, Any], threads: int | None) -> None:
        self.contract = contract
        self._session = load(graph, threads)
        self._rope = rope_rows(config, contract.bounds["capacity"][1])
        self._outputs = [value.name for value in self._session.get_outputs()]
        wanted = {"logits", *(f"present_key_values_{number}" for number in range(len(contract.kv)))}
        if set(self._outputs) != wanted:
            raise BundleError("The graph's outputs are not those of the manifest's contract: build it again.")

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that runs the graph on these arrays; see `Engine.bind`."""

        def run() -> None:
            call = _Call(self.contract, inputs, self._rope)
            try:
                found = self._session.run_with_ort_values(self._outputs, call.feeds())
            except Exception as error:
                raise GenerationError(f"The stand-in failed ({first_line(error)}): build the bundle again.") from None
            results = dict(zip(self._outputs, found, strict=True))
            if "logits" in outputs:
                outputs["logits"][...] = results["logits"].numpy().reshape(outputs["logits"].shape)
            for number, layer in enumerate(self.contract.kv):
                pool = _array(results[f"present_key_values_{number}"])
                call.take(pool, outputs[layer.present_key], outputs[layer.present_value])

        return run


class _Call:
    """One call: all sequences' tokens one behind the other, and a pool of just as many pages as they need.

    Pages are handed out from the last one on, so that a table that is not read would be seen.
    """

    def __init__(self, contract: StageContract, inputs: Mapping[str, Array], rope: Array) -> None:
        self._contract, self._inputs = contract, inputs
        self._rows = inputs["inputs_embeds"]
        self.past = inputs["past_lengths"].astype(np.int64)
        self.batch, self.seq = self._rows.shape[:2]
        each = max(1, -(-int((self.past + self.seq).max()) // PAGE))
        self.table = np.arange(self.batch * each, dtype=np.int32)[::-1].reshape(self.batch, each)
        self._positions = (self.past[:, None] + np.arange(self.seq)).reshape(-1)
        self._rope = rope

    def feeds(self) -> dict[str, ort.OrtValue]:
        """Return what the graph is fed, under its own names."""
        batch, seq, i32 = self.batch, self.seq, np.int32
        picked = np.arange(batch)[:, None] * seq + self._inputs["logit_positions"][None, :]
        feeds: dict[str, Array] = {
            "inputs_embeds": self._rows.reshape(batch * seq, -1).astype(np.float16),
            "rope_rotary_cos_sin": self._rope[self._positions],
            "positions": self._positions.astype(i32),
            "query_start_offsets": (np.arange(batch + 1) * seq).astype(i32),
            "query_lengths": np.full(batch, seq, i32),
            "past_lengths": self.past.astype(i32),
            "attention_sequence_lengths": (self.past + seq).astype(i32),
            "state_indices": np.arange(batch, dtype=i32),
            "execution_phase_marker": np.zeros(1, i32),
            "context_sequence_count_carrier": np.zeros(batch, i32),
            "kv_page_table": np.stack([self.table, self.table + self.table.size], axis=1),
            "logits_indices": picked.reshape(-1).astype(np.int64),
        }
        values = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}
        for number, layer in enumerate(self._contract.kv):
            pool = self._pool(self._inputs[layer.past_key], self._inputs[layer.past_value])
            values[f"past_key_values_{number}"] = self._value(pool)
        return values

    def _value(self, pool: Array) -> ort.OrtValue:
        kind = self._contract.kv_dtype
        if kind in FOREIGN:
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(pool, FOREIGN[kind])
        return ort.OrtValue.ortvalue_from_numpy(pool)

    def _pool(self, keys: Array, values: Array) -> Array:
        """Return `[2, pages, 128, kv_heads, head]` of what stands before each sequence's length."""
        dtype = np.uint8 if self._contract.kv_dtype in FOREIGN else np.float16
        _, heads, _, dim = keys.shape
        pool = np.zeros((2, self.table.size, PAGE, heads, dim), dtype)
        for side, cache in enumerate((keys, values)):
            for sequence, length in enumerate(self.past):
                for place, page in enumerate(self.table[sequence]):
                    rows = cache[sequence, :, place * PAGE : min(int(length), (place + 1) * PAGE)]
                    pool[side, page, : rows.shape[1]] = rows.transpose(1, 0, 2)
        return pool

    def take(self, pool: Array, keys: Array, values: Array) -> None:
        """Put the rows of this call's tokens into the caches."""
        for side, cache in enumerate((keys, values)):
            for sequence, length in enumerate(self.past):
                for row in range(int(length), int(length) + self.seq):
                    cache[sequence, :, row] = pool[side, self.table[sequence, row // PAGE], row % PAGE]


def _array(value: ort.OrtValue) -> Array:
    """Return the array of a pool; ONNX Runtime gives FP8 as bytes."""
    result: Array = value.numpy()
    return result.view(np.uint8) if result.dtype.itemsize == 1 else result


def rope_rows(config: Mapping[str, Any], positions: int) -> Array:
    """Return the rows that the runtime feeds, float32 `[positions, head]`: all cosines, then all sines.

    The frequencies are theta^(-2 i / head), divided by a factor of each; yarn also stretches the rows.
    """
    try:
        dim, theta, scaling = int(config["head_dim"]), float(config["rope_theta"]), config["rope_scaling"]
        divisors, stretch = _divisors(scaling, theta, dim)
        if divisors.shape != (dim // 2,):
            raise ValueError(dim)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        raise BundleError(
            "The engine's config.json describes no rope that this version knows: build the bundle again."
        ) from None
    frequencies = theta ** (-2.0 * np.arange(dim // 2) / dim) / divisors
    angles = np.arange(positions)[:, None] * frequencies.astype(np.float32)
    return (np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * stretch).astype(np.float32)


def _divisors(scaling: Mapping[str, Any], theta: float, dim: int) -> tuple[Array, float]:
    """Return what each frequency is divided by, and what rows are multiplied by."""
    kind = scaling["type"]
    if kind == "longrope":
        return np.asarray(scaling["long_factor"], np.float64), 1.0
    if kind == "default":
        return np.ones(dim // 2), 1.0
    if kind != "yarn":
        raise ValueError(kind)
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])

    def place(turns: float) -> float:
        """Return the place of the frequency that turns so often in the original length."""
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(place(scaling.get("beta_fast") or 32)), 0)
    last = min(math.ceil(place(scaling.get("beta_slow") or 1)), dim - 1)
    share = np.clip((np.arange(dim // 2) - first) / max(last - first, 0.001), 0.0, 1.0)
    told = scaling.get("attention_factor")
    stretch = 0.1 * math.log(factor) + 1.0 if told is None else float(told)
    return 1.0 / (share / factor + 1.0 - share), stretch


def read_config(path: Path) -> dict[str, Any]:
    """Return a `config.json`; raises BundleError for what is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(path.name)
    except (OSError, ValueError):
        raise BundleError("The engine's config.json is missing or damaged: build the bundle again.") from None
    return found
