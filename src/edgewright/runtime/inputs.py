"""What may be fed to a session: token ids and rows of embeddings, checked, and turned into what the engine takes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from edgewright.contract import StageContract
from edgewright.errors import ContextOverflowError, GenerationError
from edgewright.runtime.embedding import EmbeddingTable, checked_rows, embedding_width
from edgewright.runtime.step import Fed, Ids, Tokens, integers
from edgewright.runtime.vocabulary import Vocabulary

Logits = Literal["last", "all", "none"]


class Inputs:
    """The rules for a batch on one engine. With a `vocabulary`, ids are put in places; a `table` has their rows."""

    def __init__(
        self, contract: StageContract, batch: int, vocabulary: Vocabulary | None, table: EmbeddingTable | None
    ) -> None:
        vocab = contract.outputs[0].shape[-1]
        assert isinstance(vocab, int)
        self.vocab_size = vocab
        self.max_context = contract.bounds["capacity"][1]
        self.vocabulary, self.table = vocabulary, table
        self._batch, self._width = batch, embedding_width(contract)
        self._ahead: tuple[Tokens, Fed] | None = None

    def rectangle(self, ids: Ids) -> Tokens:
        """Return ids for every sequence, int64 `[batch, n]`; raises GenerationError on another shape or dtype."""
        array = integers(ids)
        if array.ndim == 1 and self._batch == 1:
            array = array[None]
        if array.ndim != 2 or array.shape[0] != self._batch or array.shape[1] == 0:
            raise GenerationError(
                f"Token ids of shape {list(np.shape(ids))} don't fit a batch of {self._batch}: give ids for each."
            )
        return array

    def columns(self, tokens: Tokens) -> Tokens:
        """Return where the rows of tokens stand in the tables, which is what the engine takes."""
        return tokens if self.vocabulary is None else self.vocabulary.columns(tokens)

    def checked(self, tokens: Tokens, total: int, logits: str) -> Tokens:
        """Return `columns` of tokens that make `total` tokens in all.

        Raises GenerationError on ids outside the vocabulary, ContextOverflowError when the context has no room.
        """
        _check_choice(logits)
        tokens = self.columns(tokens)
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocab_size:
            raise GenerationError(
                f"Token id {low if low < 0 else high} is outside the vocabulary of {self.vocab_size}."
            )
        self._check_room(tokens.shape[-1], total)
        return tokens

    def embeddings(self, rows: npt.ArrayLike, held: int, logits: str) -> npt.NDArray[np.float32]:
        """Return rows that follow `held` tokens as float32 `[batch, n, hidden]`; raises as `checked` does."""
        _check_choice(logits)
        fed = checked_rows(rows, self._batch, self._width)
        self._check_room(fed.shape[1], held + fed.shape[1])
        return fed

    def taken(self, tokens: Fed) -> Fed:
        """Return what the engine takes for tokens or rows, in memory of its own."""
        if self._width is None or tokens.ndim == 3:
            return tokens.copy()
        ahead, self._ahead = self._ahead, None
        if ahead is not None and np.array_equal(ahead[0], tokens):
            return ahead[1]
        if self.table is None:
            raise GenerationError("The engine takes rows of embeddings and there is no table of them: give rows.")
        return self.table.rows(tokens)

    def prefetch(self, tokens: Tokens) -> None:
        """Keep the table's rows of tokens that are `taken` next."""
        assert self.table is not None
        self._ahead = tokens, self.table.rows(tokens)

    def _check_room(self, count: int, total: int) -> None:
        if total > self.max_context:
            raise ContextOverflowError(
                f"{count} tokens after {total - count} don't fit into the context of {self.max_context}: "
                "shorten the prompt, or deploy with a larger --max-context."
            )


def _check_choice(logits: str) -> None:
    if logits not in ("last", "all", "none"):
        raise GenerationError(f"logits must be 'last', 'all' or 'none', not {logits!r}.")
