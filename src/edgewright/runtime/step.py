"""One call of an engine with all inputs and outputs bound to fixed memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.contract import StageContract
from edgewright.errors import GenerationError
from edgewright.runtime.embedding import INPUT
from edgewright.runtime.engine import Engine, zeros

Array = npt.NDArray[np.generic]
Tokens = npt.NDArray[np.int64]
Ids = Sequence[int] | npt.NDArray[np.integer]
#: Token ids int64 `[rows, n]`, or rows of embeddings float32 `[rows, n, hidden]`.
Fed = npt.NDArray[Any]


class Step:
    """A shape of call: `tokens`, whose logits are wanted at `positions` of n, over caches and states.

    `lengths` and `totals` int64 `[rows]` are what the rows hold and what they will hold after the whole append; `kv`
    are the caches, keys before values, in the contract's order; `states` are read, `spare` is written. All of them are
    bound as they are, so changing them is seen by the next run. Where caches are not in place, `fresh` has the new
    ones.
    """

    def __init__(
        self,
        engine: Engine,
        tokens: Fed,
        positions: Tokens,
        *,
        lengths: Tokens,
        totals: Tokens,
        kv: Sequence[Array],
        states: Sequence[Array],
        spare: Sequence[Array],
        vocab: int,
    ) -> None:
        self.tokens, self.totals = tokens, totals
        self._logits = np.empty((len(tokens), len(positions), vocab), dtype=np.float32)
        contract = engine.contract
        inputs: dict[str, Array] = {
            INPUT if tokens.ndim == 3 else "input_ids": tokens,
            "past_lengths": lengths,
            "logit_positions": positions.astype(np.int64),
        }
        outputs: dict[str, Array] = {"logits": self._logits}
        if contract.rope_switch is not None:
            inputs["total_lengths"] = totals
        self.fresh = [] if contract.kv_in_place else [zeros(cache.shape, cache.dtype) for cache in kv]
        for index, (past, present) in enumerate(_cache_names(contract)):
            inputs[past] = kv[index]
            outputs[present] = self.fresh[index] if self.fresh else kv[index]
        for state, before, after in zip(contract.state, states, spare, strict=True):
            inputs[state.past], outputs[state.present] = before, after
        self._call = engine.bind(inputs, outputs)

    def run(self) -> npt.NDArray[np.float32]:
        """Run and return the bound logits `[rows, positions, vocab]`, which the next run overwrites."""
        self._call()
        return self._logits


def _cache_names(contract: StageContract) -> Iterator[tuple[str, str]]:
    for layer in contract.kv:
        yield layer.past_key, layer.present_key
        yield layer.past_value, layer.present_value


def integers(ids: Ids) -> Tokens:
    """Return token ids as int64; raises GenerationError when they are no integers, or rows of different lengths."""
    try:
        array = np.asarray(ids)
    except ValueError:
        raise GenerationError("Token ids of several sequences must be equally many: use append_rows.") from None
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise GenerationError(f"Token ids must be integers, not {array.dtype}.")
    return array.astype(np.int64)
