"""A dialog's state on an engine: its key/value caches and recurrent states, and how many tokens it holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgewright.errors import ContextOverflowError, GenerationError, TruncationError
from edgewright.runtime.embedding import EmbeddingTable
from edgewright.runtime.engine import Engine, Mirror, array_dtype, zeros
from edgewright.runtime.history import History
from edgewright.runtime.inputs import Inputs, Logits
from edgewright.runtime.step import Array, Fed, Ids, Step, Tokens, integers
from edgewright.runtime.vocabulary import Vocabulary

#: Capacity a new cache starts with; it doubles when full, up to the context bound.
FIRST_CAPACITY = 256
#: When a cache grows, it has room for at least this many tokens more than are needed at once.
_ROOM = 64
#: Longest run of tokens given to the engine at once; longer appends are cut.
PREFILL_CHUNK = 512
_ALL = slice(None)
#: Recurrent states can't be cut back, so as many of them are remembered, at the ends of the latest longer appends.
_MARKS = 2
#: A length no sequence reaches.
_NEVER = 1 << 62


class Session:
    """`batch` sequences on one engine.

    `append` feeds tokens and returns logits; any split of the same tokens gives the same values up to the rounding of
    float32 sums. Not safe for use from several threads at once.

    With a reduced `vocabulary`, ids are the tokenizer's as ever, and logits have a column for each kept id. Where the
    engine takes rows of embeddings, `table` gives those of ids.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        batch: int = 1,
        first_capacity: int = FIRST_CAPACITY,
        vocabulary: Vocabulary | None = None,
        table: EmbeddingTable | None = None,
    ) -> None:
        contract = engine.contract
        low, high = contract.bounds["batch"]
        if not low <= batch <= high:
            raise GenerationError(f"A batch of {batch} is outside this bundle's bounds ({low} to {high}).")
        self._engine = engine
        self._batch = batch
        self._inputs = Inputs(contract, batch, vocabulary, table)
        self.vocabulary = vocabulary
        self.max_context, self.vocab_size = self._inputs.max_context, self._inputs.vocab_size
        self._lengths = np.zeros(batch, dtype=np.int64)
        fewest = contract.bounds.get("capacity", (1, 1))[0]
        self._kv = self._allocate(max(fewest, min(first_capacity, self.max_context)))
        self._states = [zeros((batch, *state.shape), np.float32) for state in contract.state]
        self._spare = [zeros(array.shape, np.float32) for array in self._states]
        self._marks: list[tuple[Tokens, list[Array]]] = []
        self._history = None if contract.rope_switch is None else History(batch)
        # Tokens of each sequence before the first that was fed as a row of embeddings.
        self._ids = np.full(batch, _NEVER)
        self._beyond = np.zeros(batch, dtype=bool)
        self._steps: dict[int, Step] = {}

    @property
    def length(self) -> int:
        """Tokens the longest sequence holds."""
        return int(self._lengths.max())

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens each sequence holds."""
        return tuple(int(n) for n in self._lengths)

    @property
    def capacity(self) -> int:
        """Tokens the cache has room for before it grows."""
        return min((int(array.shape[2]) for array in self._kv), default=self.max_context)

    @property
    def kv_bytes(self) -> int:
        """Size of caches and states in bytes, remembered states included."""
        marks = (array for _, states in self._marks for array in states)
        return sum(array.nbytes for array in (*self._kv, *self._states, *self._spare, *marks))

    @property
    def recurrent(self) -> bool:
        """Whether the model keeps states that can't be cut back to any length."""
        return bool(self._states)

    @property
    def ids_only(self) -> bool:
        """Whether all that is held was fed as token ids, so that these say what it is."""
        return bool((self._lengths <= self._ids).all())

    def append(self, ids: Ids, logits: Logits = "last") -> npt.NDArray[np.float32]:
        """Feed `ids` (`[n]`, or `[batch, n]`) and return float32 logits `[rows, vocab]` (`[batch, rows, vocab]`).

        `logits` selects the rows: of the last token, of all tokens, or none. Raises GenerationError on ids outside the
        vocabulary, ContextOverflowError when the context has no room for them; nothing is fed then.
        """
        tokens = self._inputs.rectangle(ids)
        return self._append(self._inputs.checked(tokens, self.length + tokens.shape[1], logits), logits)

    def prefetch(self, ids: Ids) -> None:
        """Look the rows of `ids` up now, where the embedding table stands outside, for their `append` that follows.

        Raises as `append` does. Where the table is in the graph, nothing is done.
        """
        if self._inputs.table is None or len(ids) > PREFILL_CHUNK:  # longer ones are looked up call by call
            return
        tokens = self._inputs.rectangle(ids)
        self._inputs.prefetch(self._inputs.checked(tokens, self.length + tokens.shape[1], "none"))

    def append_embeddings(self, rows: npt.ArrayLike, logits: Logits = "last") -> npt.NDArray[np.float32]:
        """Feed rows of embeddings, float32 `[n, hidden]` or `[batch, n, hidden]`, as `append` feeds the rows of ids.

        Only where the embedding table stands outside the graph. Raises as `append` does, and GenerationError on rows
        of another width or with numbers that are not finite; nothing is fed then.
        """
        fed = self._inputs.embeddings(rows, self.length, logits)
        self._ids = np.minimum(self._ids, self._lengths)
        return self._append(fed, logits)

    def _append(self, tokens: Fed, logits: Logits) -> npt.NDArray[np.float32]:
        count = tokens.shape[1]
        if count == 1 and logits == "last" and not self._crossing(count):
            self._reserve(self.length + count)
            rows = self._decode(tokens)
            return rows if self._batch > 1 else rows[0]
        results = self._feed(list(tokens), logits)
        return np.stack(results) if self._batch > 1 else results[0]

    def append_rows(self, rows: Sequence[Ids], logits: Logits = "last") -> list[npt.NDArray[np.float32]]:
        """Feed each sequence its own number of ids, at least one; returns for each the logits `[rows, vocab]`.

        No padding is involved, so none can be seen. Raises as `append`; when the engine fails in between, the rows
        before have been fed.
        """
        if len(rows) != self._batch:
            raise GenerationError(f"{len(rows)} rows of token ids don't fit a batch of {self._batch}.")
        tokens = [integers(row) for row in rows]
        if any(row.ndim != 1 or not row.size for row in tokens):
            raise GenerationError("Each row of token ids must be a list of at least one.")
        pairs = zip(tokens, self._lengths, strict=True)
        return self._feed([self._inputs.checked(row, int(length) + row.size, logits) for row, length in pairs], logits)

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens of each sequence.

        Raises TruncationError when the model keeps recurrent states and none is remembered for that length; `rewind`
        goes as near as is possible.
        """
        if not 0 <= length <= self.length:
            raise GenerationError(f"Can't truncate to {length}: the session holds {self.length} tokens.")
        lengths = np.minimum(self._lengths, length)
        if not lengths.any():
            self._clear(_ALL)
            return
        if self._states and not np.array_equal(lengths, self._lengths):
            known = next((states for n, states in self._marks if np.array_equal(n, lengths)), None)
            if known is None:
                raise TruncationError(
                    f"Can't truncate to {length}: the model's recurrent state can't be cut back, and none is "
                    "remembered for that length. Use rewind, or copy the session before."
                )
            for mine, other in zip(self._states, known, strict=True):
                mine[:] = other
            self._marks = [(n, states) for n, states in self._marks if (n <= lengths).all()]
        self._set_lengths(lengths)

    def rewind(self, length: int) -> int:
        """Truncate to `length`, or to the nearest shorter one that is possible; returns where that is."""
        if self._states and 0 < length < self.length:
            # A mark counts only where every sequence, cut to its longest, has the length the mark has.
            ends = [(int(n.max()), n) for n, _ in self._marks]
            known = [end for end, n in ends if end <= length and (np.minimum(self._lengths, end) == n).all()]
            length = max(known, default=0)
        self.truncate(length)
        return length

    def copy(self) -> Session:
        """Return an independent session with the same content."""
        twin = Session(
            self._engine,
            batch=self._batch,
            first_capacity=self.capacity,
            vocabulary=self.vocabulary,
            table=self._inputs.table,
        )
        for mine, other in zip(self._kv, twin._kv, strict=True):
            other[:, :, : self.length] = mine[:, :, : self.length]
        for mine, other in zip(self._states, twin._states, strict=True):
            other[:] = mine
        twin._marks = list(self._marks)
        if self._history is not None:
            twin._history = self._history.copy()
        twin._ids[:] = self._ids
        twin._beyond[:] = self._beyond
        twin._set_lengths(self._lengths)
        return twin

    def cache(self) -> list[Array]:
        """Return the filled part of each cache `[batch, kv_heads, length, width]`, keys before values, then states.

        The caches are views that the next append may overwrite; the states are copies.
        """
        if self._crossing(0):  # a longer text was cut back: what is kept has the frequencies of its own length
            for row in range(self._batch):
                self._refill(slice(row, row + 1), int(self._lengths[row]))
        return [*(array[:, :, : self.length] for array in self._kv), *(state.copy() for state in self._states)]

    def restore(self, cache: Sequence[Array], ids: Ids) -> None:
        """Replace the content of a session of batch 1 by what `cache()` returned for `ids`.

        Raises GenerationError when shapes or dtypes differ.
        """
        if self._batch != 1:
            raise GenerationError("A saved cache holds one sequence: restore it into a session of batch 1.")
        length = len(ids)
        expected = [((*a.shape[:2], length, a.shape[3]), a.dtype) for a in self._kv]
        expected += [(a.shape, a.dtype) for a in self._states]
        if [(a.shape, a.dtype) for a in cache] != expected:
            raise GenerationError("The saved cache has other shapes than this model's: it was made by another model.")
        if length > self.max_context:
            raise ContextOverflowError(f"The saved cache of {length} tokens exceeds the context of {self.max_context}.")
        self._reserve(length)
        self._clear(_ALL)
        if self._kv and isinstance(self._engine, Mirror):
            self._engine.overwritten(self._kv[0], self._lengths)
        for mine, other in zip(self._kv, cache, strict=False):
            mine[:, :, :length] = other
        for mine, other in zip(self._states, cache[len(self._kv) :], strict=True):
            mine[:] = other
        self._lengths[:] = length
        if self._history is not None:
            self._history.extend(_ALL, self._inputs.columns(integers(ids))[None])
            self._beyond[:] = length > (self._engine.contract.rope_switch or 0)
        self._remember()

    def _set_lengths(self, lengths: Tokens) -> None:
        if self._history is not None:
            self._history.cut(lengths)
        self._ids[lengths <= self._ids] = _NEVER
        self._lengths[:] = lengths

    def _clear(self, group: slice) -> None:
        """Make the sequences of `group` empty."""
        self._lengths[group] = 0
        self._ids[group] = _NEVER
        for state in self._states:
            state[group] = 0
        if self._history is not None:
            self._history.clear(group)
        self._marks = []

    def _crossing(self, count: int) -> bool:
        switch = self._engine.contract.rope_switch
        return switch is not None and bool((((self._lengths + count) > switch) != self._beyond).any())

    def _allocate(self, capacity: int) -> list[Array]:
        contract = self._engine.contract
        dtype = array_dtype(contract.kv_dtype)
        return [
            zeros((self._batch, layer.kv_heads, capacity, width), dtype)
            for layer in contract.kv
            for width in (layer.head_dim, layer.value_dim or layer.head_dim)
        ]

    def _reserve(self, length: int) -> None:
        capacity = self.capacity
        if length <= capacity or not self._kv:
            return
        while capacity < length + _ROOM:
            capacity *= 2
        capacity = min(capacity, self.max_context)
        self._steps = {}
        # One tensor after the other: peak memory grows by one tensor, and an interruption leaves a usable cache.
        held = self.length
        for index, array in enumerate(self._kv):
            if array.shape[2] < capacity:
                grown = zeros((*array.shape[:2], capacity, array.shape[3]), array.dtype)
                grown[:, :, :held] = array[:, :, :held]
                self._kv[index] = grown

    def _feed(self, rows: Sequence[Fed], logits: Logits) -> list[npt.NDArray[np.float32]]:
        """Feed rows of any lengths; returns each row's logits."""
        self._reserve(int((self._lengths + [len(row) for row in rows]).max()))
        together = self._batch == 1 or (
            len({len(row) for row in rows}) == 1
            and self._history is None  # what a total length decides is decided for each row
            # The attention kernel continues several tokens at once for one sequence only.
            and (len(rows[0]) == 1 or not self._lengths.any() or not self._engine.contract.kv_in_place)
        )
        groups = [_ALL] if together else [slice(b, b + 1) for b in range(self._batch)]
        results: list[npt.NDArray[np.float32]] = []
        for group in groups:
            results += list(self._feed_group(np.stack(rows[group]), group, logits))
        if max(len(row) for row in rows) > 1:
            self._remember()
        return results

    def _feed_group(self, tokens: Fed, group: slice, logits: Logits) -> npt.NDArray[np.float32]:
        """Feed `tokens` `[rows, n, ...]` to the sequences of `group`; returns new logits `[rows, positions, vocab]`."""
        count = tokens.shape[1]
        total = int(self._lengths[group].max()) + count
        self._refill(group, total)
        parts = []
        for start in range(0, count, PREFILL_CHUNK):
            chunk = tokens[:, start : start + PREFILL_CHUNK]
            size = chunk.shape[1]
            wanted = size if logits == "all" else int(logits == "last" and start + size == count)
            parts.append(self._run(chunk, np.arange(size - wanted, size), group, total))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _refill(self, group: slice, total: int) -> None:
        """Feed the one sequence of `group` again when `total` tokens have other rope frequencies than what it holds."""
        switch = self._engine.contract.rope_switch
        if switch is None or self._history is None:
            return
        held = self._history.held(group, self._inputs.taken)
        ids = self._ids.copy()
        changes = self._beyond[group] != (total > switch)
        if changes.any() and held.size:
            self._clear(group)
            self._ids = ids
        self._beyond[group] = total > switch
        if changes.any():
            # Every chunk leaves a shorter but sound session, should it be interrupted.
            for start in range(0, held.shape[1], PREFILL_CHUNK):
                self._run(held[:, start : start + PREFILL_CHUNK], np.arange(0), group, total)

    def _run(self, tokens: Fed, positions: Tokens, group: slice, total: int) -> npt.NDArray[np.float32]:
        """Run once over `tokens` `[rows, n, ...]`; returns logits `[rows, positions, vocab]` in fresh memory."""
        step = self._step(self._inputs.taken(tokens), positions, group, total)
        result = step.run()
        self._advance(step, tokens, group)
        return result

    def _step(self, tokens: Fed, positions: Tokens, group: slice, total: int) -> Step:
        return Step(
            self._engine,
            tokens,
            positions,
            lengths=self._lengths[group],
            totals=np.full(len(tokens), total, dtype=np.int64),
            kv=[array[group] for array in self._kv],
            states=[array[group] for array in self._states],
            spare=[array[group] for array in self._spare],
            vocab=self.vocab_size,
        )

    def _advance(self, step: Step, tokens: Fed, group: slice) -> None:
        """Take over what a step that ran `tokens` for `group` has left, and count them as held."""
        for mine, fresh in zip(self._kv, step.fresh, strict=False):
            mine[group] = fresh
        if group == _ALL:
            self._states, self._spare = self._spare, self._states
        else:
            for mine, other in zip(self._states, self._spare, strict=True):
                mine[group] = other[group]
        self._lengths[group] += tokens.shape[1]
        if self._history is not None:
            self._history.extend(group, tokens)

    def _decode(self, tokens: Fed) -> npt.NDArray[np.float32]:
        """Run one token a sequence with everything bound once; returns `[batch, 1, vocab]`."""
        # Where states change places every step, there is a binding for each of the two.
        key = id(self._states[0]) if self._states else 0
        step = self._steps.get(key) if self._engine.contract.kv_in_place else None
        if step is None:
            step = self._steps[key] = self._step(self._inputs.taken(tokens), np.zeros(1, dtype=np.int64), _ALL, 0)
        else:
            step.tokens[:] = self._inputs.taken(tokens)
        step.totals[:] = self._lengths + 1
        result = step.run().copy()
        self._advance(step, tokens, _ALL)
        return result

    def _remember(self) -> None:
        if self._states:
            mark = (self._lengths.copy(), [array.copy() for array in self._states])
            self._marks = [*self._marks[1 - _MARKS :], mark]


def unpadded(ids: npt.NDArray[np.integer], mask: npt.NDArray[np.generic]) -> list[Tokens]:
    """Return the real tokens of each row of padded ids `[batch, n]`; `mask` `[batch, n]` is 1 where one is real.

    Padding may stand on the left or on the right. Raises GenerationError when a mask has a hole.
    """
    rows = []
    for row, kept in zip(np.asarray(ids, dtype=np.int64), np.asarray(mask, dtype=bool), strict=True):
        places = np.flatnonzero(kept)
        if places.size and places[-1] - places[0] + 1 != places.size:
            raise GenerationError("The attention mask has a hole: only padding on one side is understood.")
        rows.append(row[kept])
    return rows
