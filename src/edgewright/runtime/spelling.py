"""Tokens that a reduced vocabulary dropped, spelled in tokens that it keeps.

A dropped token becomes the fewest kept tokens whose texts joined are its own; of equally many, the longest first one
comes first. Single bytes are always kept where a tokenizer has them, so every text can be spelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from edgewright.errors import GenerationError
from edgewright.runtime.text import Tokenizer
from edgewright.runtime.vocabulary import Vocabulary


class Encoded(list[int]):
    """Token ids of a text. `respelled` tells how often each dropped token of it was spelled in kept ones."""

    respelled: dict[int, int]

    def __init__(self, ids: Sequence[int], respelled: dict[int, int]) -> None:
        super().__init__(ids)
        self.respelled = respelled


def respelled(ids: Sequence[int]) -> dict[int, int]:
    """Return how often each dropped token was spelled in kept ones on the way to `ids`; empty for plain ids."""
    return dict(ids.respelled) if isinstance(ids, Encoded) else {}


class Speller:
    """Puts kept tokens in the place of dropped ones; the same ids always give the same spelling."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._spelled: dict[int, tuple[int, ...]] = {}

    def __call__(self, ids: Sequence[int]) -> Encoded:
        """Return `ids` without dropped ones; raises GenerationError that names a token which can't be spelled.

        Ids beyond the model's vocabulary stay, so that they are refused as they always are.
        """
        result: list[int] = []
        counts: dict[int, int] = {}
        for token_id in ids:
            if token_id in self._vocabulary or token_id >= self._vocabulary.full_size:
                result.append(token_id)
                continue
            result += self.spell(token_id)
            counts[token_id] = counts.get(token_id, 0) + 1
        return Encoded(result, counts)

    def spell(self, token_id: int) -> tuple[int, ...]:
        """Return the kept tokens that have the text of a dropped one; raises GenerationError where there are none."""
        if token_id not in self._spelled:
            token = self._tokenizer.id_to_token(token_id)
            spelled = self._fewest(token) if token and token_id not in self._tokenizer.added_ids else None
            if spelled is None:
                raise GenerationError(self._vocabulary.refusal(token_id, token))
            self._spelled[token_id] = spelled
        return self._spelled[token_id]

    @cached_property
    def _pieces(self) -> dict[str, int]:
        """Kept tokens that are plain text, by their text."""
        if not self._tokenizer.joins:
            return {}
        kept = set(self._vocabulary.ids.tolist()) - self._tokenizer.added_ids
        named = ((self._tokenizer.id_to_token(i), i) for i in sorted(kept))
        return {token: i for token, i in named if token and not (self._bytes and token in self._bytes)}

    @cached_property
    def _bytes(self) -> dict[str, int]:
        """Kept tokens that stand for one byte of a character without a token, by their names; empty without any."""
        if not self._tokenizer.byte_fallback:
            return {}
        named = ((f"<0x{byte:02X}>", self._tokenizer.token_to_id(f"<0x{byte:02X}>")) for byte in range(256))
        return {name: i for name, i in named if i is not None and i in self._vocabulary}

    def _fewest(self, token: str) -> tuple[int, ...] | None:
        """Return the fewest pieces that give `token`, None when it can't be made of them."""
        pieces, longest = self._pieces, max(map(len, self._pieces), default=0)
        best: list[tuple[int, ...] | None] = [None] * len(token) + [()]
        for start in reversed(range(len(token))):
            for stop in range(min(len(token), start + longest), start, -1):
                rest, piece = best[stop], pieces.get(token[start:stop])
                here = best[start]
                if piece is not None and rest is not None and (here is None or len(rest) + 1 < len(here)):
                    best[start] = (piece, *rest)
            rest, here, spelled = best[start + 1], best[start], self._as_bytes(token[start])
            if spelled and rest is not None and (here is None or len(spelled) + len(rest) < len(here)):
                best[start] = (*spelled, *rest)
        return best[0]

    def _as_bytes(self, character: str) -> tuple[int, ...]:
        found = [self._bytes.get(f"<0x{byte:02X}>") for byte in character.encode("utf-8", "surrogatepass")]
        return tuple(i for i in found if i is not None) if None not in found else ()
