"""A dialog's state on an engine: its key/value cache and how many tokens it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from edgewright.errors import ContextOverflowError, GenerationError
from edgewright.runtime.engine import Engine, share, zeros

Logits = Literal["last", "all", "none"]
Ids = Sequence[int] | npt.NDArray[np.integer]

#: Capacity a new cache starts with; it doubles when full, up to the context bound.
FIRST_CAPACITY = 256
#: When a cache grows, it has room for at least this many tokens more than are needed at once.
_ROOM = 64
#: Longest run of tokens given to the engine at once; longer appends are cut.
PREFILL_CHUNK = 512


class Session:
    """`batch` sequences of equal length on one engine.

    `append` feeds tokens and returns logits; any split of the same tokens gives the same values up to the rounding of
    float32 sums. Not safe for use from several threads at once.
    """

    def __init__(self, engine: Engine, *, batch: int = 1, first_capacity: int = FIRST_CAPACITY) -> None:
        contract = engine.contract
        low, high = contract.bounds["batch"]
        if not low <= batch <= high:
            raise GenerationError(f"A batch of {batch} is outside this bundle's bounds ({low} to {high}).")
        self._engine = engine
        self._batch = batch
        self.max_context = contract.bounds["capacity"][1]
        vocab = contract.outputs[0].shape[-1]
        assert isinstance(vocab, int)
        self.vocab_size = vocab
        self._length = 0
        self._lengths = np.zeros(batch, dtype=np.int64)
        self._kv = self._allocate(min(first_capacity, self.max_context))
        self._step: _Step | None = None

    @property
    def length(self) -> int:
        """Tokens each sequence holds."""
        return self._length

    @property
    def capacity(self) -> int:
        """Tokens the cache has room for before it grows."""
        return min((int(array.shape[2]) for array in self._kv), default=self.max_context)

    @property
    def kv_bytes(self) -> int:
        """Size of the cache in bytes."""
        return sum(array.nbytes for array in self._kv)

    def append(self, ids: Ids, logits: Logits = "last") -> npt.NDArray[np.float32]:
        """Feed `ids` (`[n]`, or `[batch, n]`) and return float32 logits `[rows, vocab]` (`[batch, rows, vocab]`).

        `logits` selects the rows: of the last token, of all tokens, or none. Raises GenerationError on ids outside the
        vocabulary, ContextOverflowError when the context has no room for them; nothing is fed then.
        """
        tokens = self._checked(ids)
        if logits not in ("last", "all", "none"):
            raise GenerationError(f"logits must be 'last', 'all' or 'none', not {logits!r}.")
        count = tokens.shape[1]
        if self._length + count > self.max_context:
            raise ContextOverflowError(
                f"{count} tokens after {self._length} don't fit into the context of {self.max_context}: "
                "shorten the prompt, or deploy with a larger --max-context."
            )
        self._reserve(self._length + count)
        if count == 1 and logits == "last":
            rows = self._decode(tokens)
            return rows if self._batch > 1 else rows[0]
        parts = []
        for start in range(0, count, PREFILL_CHUNK):
            chunk = tokens[:, start : start + PREFILL_CHUNK]
            size = chunk.shape[1]
            if logits == "all":
                positions = np.arange(size)
            elif logits == "last" and start + size == count:
                positions = np.array([size - 1])
            else:
                positions = np.array([], dtype=np.int64)
            parts.append(self._run(chunk, positions))
        result = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return result if self._batch > 1 else result[0]

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        if not 0 <= length <= self._length:
            raise GenerationError(f"Can't truncate to {length}: the session holds {self._length} tokens.")
        self._set_length(length)

    def copy(self) -> Session:
        """Return an independent session with the same content."""
        twin = Session(self._engine, batch=self._batch, first_capacity=self.capacity)
        for mine, other in zip(self._kv, twin._kv, strict=True):
            other[:, :, : self._length] = mine[:, :, : self._length]
        twin._set_length(self._length)
        return twin

    def cache(self) -> list[npt.NDArray[np.generic]]:
        """Return the filled part of each cache tensor, `[batch, kv_heads, length, head_dim]`, keys before values."""
        return [array[:, :, : self._length] for array in self._kv]

    def restore(self, cache: Sequence[npt.NDArray[np.generic]]) -> None:
        """Replace the content by what `cache()` returned; raises GenerationError when shapes or dtypes differ."""
        expected = [(a.shape[:2], a.shape[3], a.dtype) for a in self._kv]
        given = [(a.shape[:2], a.shape[3], a.dtype) if a.ndim == 4 else None for a in cache]
        lengths = {a.shape[2] for a in cache if a.ndim == 4}
        if given != expected or len(lengths) != 1:
            raise GenerationError("The saved cache has other shapes than this model's: it was made by another model.")
        length = lengths.pop()
        if length > self.max_context:
            raise ContextOverflowError(f"The saved cache of {length} tokens exceeds the context of {self.max_context}.")
        self._set_length(0)
        self._reserve(length)
        for mine, other in zip(self._kv, cache, strict=True):
            mine[:, :, :length] = other
        self._set_length(length)

    def _checked(self, ids: Ids) -> npt.NDArray[np.int64]:
        try:
            array = np.asarray(ids)
        except ValueError:
            raise GenerationError("Token ids of several sequences must be equally many.") from None
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise GenerationError(f"Token ids must be integers, not {array.dtype}.")
        if array.ndim == 1 and self._batch == 1:
            array = array[None]
        if array.ndim != 2 or array.shape[0] != self._batch or array.shape[1] == 0:
            raise GenerationError(
                f"Token ids of shape {list(np.shape(ids))} don't fit a batch of {self._batch}: give ids for each."
            )
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self.vocab_size:
            raise GenerationError(
                f"Token id {low if low < 0 else high} is outside the vocabulary of {self.vocab_size}."
            )
        return array.astype(np.int64)

    def _set_length(self, length: int) -> None:
        self._length = length
        self._lengths[:] = length

    def _allocate(self, capacity: int) -> list[npt.NDArray[np.generic]]:
        contract = self._engine.contract
        dtype = np.dtype(contract.kv_dtype)
        return [
            zeros((self._batch, layer.kv_heads, capacity, layer.head_dim), dtype)
            for layer in contract.kv
            for _ in ("key", "value")
        ]

    def _reserve(self, length: int) -> None:
        capacity = self.capacity
        if length <= capacity:
            return
        while capacity < length + _ROOM:
            capacity *= 2
        capacity = min(capacity, self.max_context)
        self._step = None
        # One tensor after the other: peak memory grows by one tensor, and an interruption leaves a usable cache.
        for index, array in enumerate(self._kv):
            if array.shape[2] < capacity:
                grown = zeros((*array.shape[:2], capacity, array.shape[3]), array.dtype)
                grown[:, :, : self._length] = array[:, :, : self._length]
                self._kv[index] = grown

    def _run(self, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Run once over `tokens` `[batch, n]`; returns logits `[batch, positions, vocab]` in fresh memory."""
        count = tokens.shape[1]
        by_row = self._batch > 1 and count > 1 and self._length > 0 and self._engine.contract.kv_in_place
        if by_row:
            # The attention kernel continues several tokens at once for one sequence only.
            rows = [slice(b, b + 1) for b in range(self._batch)]
            result = np.concatenate([_Step(self, tokens[row].copy(), positions, row).run() for row in rows])
        else:
            result = _Step(self, tokens.copy(), positions).run()
        self._set_length(self._length + count)
        return result

    def _decode(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Run one token a sequence with everything bound once; returns `[batch, 1, vocab]`."""
        if self._step is None or not self._engine.contract.kv_in_place:
            self._step = _Step(self, tokens.copy(), np.zeros(1, dtype=np.int64))
        self._step.tokens[:] = tokens
        result = self._step.run().copy()
        self._set_length(self._length + 1)
        return result


_ALL = slice(None)


class _Step:
    """One shape of call with all inputs and outputs bound to fixed memory; `rows` picks sequences of the batch."""

    def __init__(
        self,
        session: Session,
        tokens: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        rows: slice = _ALL,
    ) -> None:
        self._session = session
        self._engine = engine = session._engine
        self.tokens = tokens
        self.logits = np.empty((len(tokens), len(positions), session.vocab_size), dtype=np.float32)
        self._binding = engine.binding()
        # The binding does not keep the arrays alive, so the values are kept here.
        self._kept: list[ort.OrtValue] = []
        self._input("input_ids", tokens)
        self._input("past_lengths", session._lengths[rows])
        self._input("logit_positions", positions.astype(np.int64))
        self._output("logits", self.logits)
        self._fresh = [] if engine.contract.kv_in_place else [zeros(array.shape, array.dtype) for array in session._kv]
        caches = session._kv
        for index, (past, present) in enumerate(_cache_names(engine)):
            self._input(past, caches[index][rows])
            self._output(present, self._fresh[index] if self._fresh else caches[index][rows])

    def _input(self, name: str, array: npt.NDArray[np.generic]) -> None:
        self._kept.append(share(array))
        self._binding.bind_ortvalue_input(name, self._kept[-1])

    def _output(self, name: str, array: npt.NDArray[np.generic]) -> None:
        self._kept.append(share(array))
        self._binding.bind_ortvalue_output(name, self._kept[-1])

    def run(self) -> npt.NDArray[np.float32]:
        """Run and return the bound logits (overwritten by the next run)."""
        self._engine.run(self._binding)
        if self._fresh:
            self._session._kv = self._fresh
        return self.logits


def _cache_names(engine: Engine) -> Iterator[tuple[str, str]]:
    for layer in engine.contract.kv:
        yield layer.past_key, layer.present_key
        yield layer.past_value, layer.present_value
