"""One running generation: an iterator of text pieces that also keeps the tokens and says why it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgewright.errors import ContextOverflowError, GenerationError, TokenizerError
from edgewright.runtime.inputs import Logits
from edgewright.runtime.rawtable import Rows, Table
from edgewright.runtime.sampling import Sampler, SamplingParams
from edgewright.runtime.scheduling.work import Phase, Quantum
from edgewright.runtime.session import PREFILL_CHUNK, Session
from edgewright.runtime.spelling import respelled
from edgewright.runtime.stopping import StopStrings
from edgewright.runtime.stream import StreamDecoder
from edgewright.runtime.text import Tokenizer

FinishReason = Literal["stop", "length", "no-table"]
#: Where the embeddings of tokens come from: the session's own way with ids, a table, or nowhere.
Tables = Table | Literal["own"] | None


class Generation:
    """Iterate for pieces of text as they become certain; the work is done as you iterate.

    `tokens` holds the generated ids so far (an EOS id that ended it included), `finish_reason` is None until the end:
    "stop" (EOS or stop string), "length" (`max_tokens`, or the context is full) or "no-table". The session holds the
    prompt and all tokens but the last, which was not fed; a dialog that goes on begins with it. `history` are ids the
    session held before, for the repetition penalty. `respelled` tells how often each token of the prompt that a reduced
    vocabulary dropped was spelled in kept ones.

    `embeddings` is a prompt of rows instead of ids. `table` has the rows of ids then: "own" feeds ids as ever, a Table
    is asked for rows, and with None no id can follow embeddings, so that they give one token and "no-table".
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
        embeddings: Rows | None = None,
        table: Tables = "own",
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise GenerationError(f"max_tokens must be at least 1, not {max_tokens}.")
        if embeddings is not None and len(prompt_ids):
            raise GenerationError("A prompt is token ids or embeddings, not both.")
        prompt: Rows | list[int] = list(prompt_ids) if embeddings is None else embeddings
        if len(prompt) == 0:
            raise GenerationError("The prompt is empty: give at least one token.")
        if stop and tokenizer is None:
            raise TokenizerError("Stop strings need a tokenizer and this bundle has none: use ids and eos only.")
        room = session.max_context - session.length - len(prompt)
        if room < 0:
            raise ContextOverflowError(
                f"The prompt of {len(prompt)} tokens does not fit: {session.max_context - session.length} of the "
                f"context's {session.max_context} are left. Shorten it, or deploy with a larger --max-context."
            )
        self.session = session
        self.prompt_ids = list(prompt_ids)
        self.prompt_tokens = len(prompt)
        self.respelled = respelled(prompt_ids)
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._prompt = prompt
        # Without a table, ids can still follow ids.
        self._table: Tables = "own" if table is None and embeddings is None else table
        # The last token needs no place in the cache, so one more than the room can be made.
        self._limit = room + 1 if max_tokens is None else min(max_tokens, room + 1)
        self._eos = frozenset(eos_ids)
        self._decoder = StreamDecoder(tokenizer, prompt_ids=self.prompt_ids) if tokenizer else None
        kept = None if session.vocabulary is None else session.vocabulary.ids
        self._sampler = Sampler(sampling, [*history, *self.prompt_ids], token_ids=kept)
        self._stop = StopStrings(stop) if stop else None
        self._stopped = False  # at a stop string
        self._fresh = ""
        self._logits: npt.NDArray[np.float32] | None = None
        self._quanta: Iterator[Quantum] | None = None
        self._pieces: Iterator[str] | None = None

    def __iter__(self) -> Iterator[str]:
        # Made when asked for: one that only waits would keep the session in memory until cycles are next collected.
        if self._pieces is None:
            self._pieces = self._run()
        return self._pieces

    @property
    def text(self) -> str:
        """Run to the end and return the text that was not yet iterated over."""
        return "".join(self)

    def all_tokens(self) -> list[int]:
        """Run to the end and return all generated ids."""
        for _ in self:
            pass
        return self.tokens

    def quanta(self, chunk: int | None = PREFILL_CHUNK) -> Iterator[Quantum]:
        """Yield the engine's calls one by one, each to be run before the next is asked for.

        The prompt is fed `chunk` tokens at a time, None for all at once. Looking rows up, sampling and detokenizing
        happen while the next call is asked for; `take_text` has the text then. A generation has one such iterator, so
        after the first call `chunk` has no effect. Of a model with two sets of rope frequencies, the chunk that crosses
        to the other set feeds again what was held. Raises GenerationError, as `append` of Session does, where what is
        to be fed can't be: there, or when it is run.
        """
        if chunk is not None and chunk < 1:
            raise GenerationError(f"A prompt is fed at least one token at a time, not {chunk}.")
        if self._quanta is None:
            self._quanta = self._steps(chunk)
        return self._quanta

    def take_text(self) -> str:
        """Return the text that became certain since it was last asked for."""
        fresh, self._fresh = self._fresh, ""
        return fresh

    def _run(self) -> Iterator[str]:
        for quantum in self.quanta(None):
            if piece := self.take_text():
                yield piece
            quantum.run()
        if piece := self.take_text():
            yield piece

    def _steps(self, chunk: int | None) -> Iterator[Quantum]:
        count, size = self.prompt_tokens, chunk or self.prompt_tokens
        for start in range(0, count, size):
            yield self._quantum("prefill", self._prompt[start : start + size], last=start + size >= count)
            self._require_run()
        while True:
            assert self._logits is not None
            token = self._sampler(self._logits[0])
            self._take(token)
            if self.finish_reason is not None:
                break
            yield self._quantum("decode", [token], last=True)
            self._require_run()
        self._finish()

    def _quantum(self, phase: Phase, part: Any, *, last: bool) -> Quantum:
        """Return the call that feeds a part of the prompt or a token, whose rows are looked up now."""
        feed = self._feeder(part)
        logits: Logits = "last" if last else "none"
        self._logits = None

        def run() -> None:
            self._logits = feed(logits)

        return Quantum(phase, len(part), run, emits=last, held=self.session.length)

    def _feeder(self, part: Any) -> Callable[[Logits], npt.NDArray[np.float32]]:
        if not isinstance(part, list):
            rows = np.asarray(part)
        elif self._table == "own":
            self.session.prefetch(part)
            return lambda logits: self.session.append(part, logits)
        else:
            assert self._table is not None
            rows = self._table.rows(np.asarray(part, np.int64))
        return lambda logits: self.session.append_embeddings(rows, logits)

    def _require_run(self) -> None:
        if self._logits is None:
            raise GenerationError("The call before hasn't been run, or failed: nothing can follow it.")

    def _take(self, token: int) -> None:
        """Count a token in: see whether it is the last one, and what text it makes certain."""
        self.tokens.append(token)
        if token in self._eos:
            self.finish_reason = "stop"
            return
        if len(self.tokens) >= self._limit:
            self.finish_reason = "length"
        elif self._table is None:
            self.finish_reason = "no-table"
        if self._decoder is not None:
            self._release(self._decoder.push(token))

    def _finish(self) -> None:
        """Release the text that only the end makes certain."""
        if self._decoder is None or self._stopped:
            return
        self._release(self._decoder.flush())
        if self._stop is not None and not self._stopped:
            self._fresh += self._stop.flush()

    def _release(self, piece: str) -> None:
        """Pass a piece on, up to a stop string if one is complete."""
        if self._stop is not None:
            piece, self._stopped = self._stop.push(piece)
            if self._stopped:
                self.finish_reason = "stop"
        self._fresh += piece
