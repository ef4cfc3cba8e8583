"""One running generation: an iterator of text pieces that also keeps the tokens and says why it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from edgewright.errors import ContextOverflowError, GenerationError, TokenizerError
from edgewright.runtime.sampling import Sampler, SamplingParams
from edgewright.runtime.session import Session
from edgewright.runtime.spelling import respelled
from edgewright.runtime.stopping import StopStrings
from edgewright.runtime.stream import StreamDecoder
from edgewright.runtime.text import Tokenizer

FinishReason = Literal["stop", "length"]


class Generation:
    """Iterate for pieces of text as they become certain; the work is done as you iterate.

    `tokens` holds the generated ids so far (an EOS id that ended it included), `finish_reason` is None until the end:
    "stop" (EOS or stop string) or "length" (`max_tokens`, or the context is full). The session holds the prompt and all
    tokens but the last, which was not fed; a dialog that goes on begins with it. `history` are ids the session held
    before, for the repetition penalty. `respelled` tells how often each token of the prompt that a reduced vocabulary
    dropped was spelled in kept ones.
    """

    def __init__(
        self,
        session: Session,
        prompt_ids: Sequence[int],
        *,
        tokenizer: Tokenizer | None,
        eos_ids: Sequence[int],
        sampling: SamplingParams,
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        history: Sequence[int] = (),
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise GenerationError(f"max_tokens must be at least 1, not {max_tokens}.")
        if len(prompt_ids) == 0:
            raise GenerationError("The prompt is empty: give at least one token.")
        if stop and tokenizer is None:
            raise TokenizerError("Stop strings need a tokenizer and this bundle has none: use ids and eos only.")
        room = session.max_context - session.length - len(prompt_ids)
        if room < 0:
            raise ContextOverflowError(
                f"The prompt of {len(prompt_ids)} tokens does not fit: {session.max_context - session.length} of the "
                f"context's {session.max_context} are left. Shorten it, or deploy with a larger --max-context."
            )
        self.session = session
        self.prompt_ids = list(prompt_ids)
        self.respelled = respelled(prompt_ids)
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        # The last token needs no place in the cache, so one more than the room can be made.
        self._limit = room + 1 if max_tokens is None else min(max_tokens, room + 1)
        self._eos = frozenset(eos_ids)
        self._tokenizer = tokenizer
        kept = None if session.vocabulary is None else session.vocabulary.ids
        self._sampler = Sampler(sampling, [*history, *self.prompt_ids], token_ids=kept)
        self._stop = StopStrings(stop) if stop else None
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    @property
    def text(self) -> str:
        """Run to the end and return the text that was not yet iterated over."""
        return "".join(self._pieces)

    def all_tokens(self) -> list[int]:
        """Run to the end and return all generated ids."""
        for _ in self._pieces:
            pass
        return self.tokens

    def _run(self) -> Iterator[str]:
        decoder = StreamDecoder(self._tokenizer, prompt_ids=self.prompt_ids) if self._tokenizer else None
        pending: list[int] = self.prompt_ids
        while self.finish_reason is None:
            token = self._sampler(self.session.append(pending, logits="last")[0])
            self.tokens.append(token)
            pending = [token]
            if token in self._eos:
                self.finish_reason = "stop"
            elif len(self.tokens) >= self._limit:
                self.finish_reason = "length"
            if decoder is None or token in self._eos:
                continue
            yield from self._release(decoder.push(token))
        if decoder is not None and self._stopped_by is None:
            yield from self._release(decoder.flush())
            if self._stop is not None and self._stopped_by is None:
                rest = self._stop.flush()
                if rest:
                    yield rest

    _stopped_by: str | None = None

    def _release(self, piece: str) -> Iterator[str]:
        """Pass a piece on, up to a stop string if one is complete."""
        if self._stop is not None:
            piece, stopped = self._stop.push(piece)
            if stopped:
                self.finish_reason = "stop"
                self._stopped_by = "stop string"
        if piece:
            yield piece
