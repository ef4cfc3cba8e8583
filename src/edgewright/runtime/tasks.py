"""Loaded models as tasks that share an accelerator: a dialog of a language model, the frames of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgewright.errors import GenerationError, UsageError
from edgewright.runtime.generation import Generation, Tables
from edgewright.runtime.llm import LLM, Messages
from edgewright.runtime.policy import Chunk, Policy
from edgewright.runtime.rawtable import LookUp, RawRows, RawTable, Rows
from edgewright.runtime.sampling import SamplingParams
from edgewright.runtime.scheduling.rhythm import Rhythm
from edgewright.runtime.scheduling.work import Job, Quantum
from edgewright.runtime.session import PREFILL_CHUNK, Session

Reset = Literal["iteration", "never"]
#: What a dialog is asked: text, token ids, messages, or rows of embeddings.
Prompt = str | Sequence[int] | Messages | RawRows | npt.NDArray[np.floating]


class DialogTask:
    """A dialog: its prompt is asked `rhythm.iterations` times of a language model that dialogs may share.

    With `reset` "iteration" each query has a session of its own, and the sampler's seed begins anew, so that all of
    them give the same tokens. With "never" the dialog goes on in one session: a prompt follows what is held, after the
    last token before, which was not fed yet; when the context is full, a query fails with ContextOverflowError.
    `table`, `sampling`, `stop`, `max_tokens` and `ignore_eos` are as `LLM.generate` has them, with `table` for
    embeddings and, where it is a Table, for ids too. `chunk` is the number of prompt tokens in a step. `on_text` is
    told the iteration and the text that became certain. After a query that failed on the way or was stopped, the dialog
    begins anew. Raises UsageError and GenerationError on what can't be.

    Facts of a job: `prompt_tokens`, `generated_tokens`, `finish_reason`, `tokens` (ids), `text` (where the bundle has a
    tokenizer), and of a LookUp `saturated` and `lookups`, both of that job.
    """

    def __init__(
        self,
        name: str,
        llm: LLM,
        prompt: Prompt,
        *,
        rhythm: Rhythm | None = None,
        reset: Reset = "iteration",
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        chunk: int | None = PREFILL_CHUNK,
        table: Tables = "own",
        on_text: Callable[[int, str], None] | None = None,
    ) -> None:
        if reset not in ("iteration", "never"):
            raise UsageError(f"A dialog is reset each iteration or never, not {reset!r}.")
        self.name, self.rhythm = name, rhythm or Rhythm()
        _check_widths(name, llm.embedding_width, prompt, table)
        self._llm, self._prompt, self._reset, self._chunk = llm, prompt, reset, chunk
        self._options: dict[str, Any] = {
            "max_tokens": max_tokens,
            "sampling": sampling,
            "stop": stop,
            "ignore_eos": ignore_eos,
            "table": table,
        }
        self._look_up = table if isinstance(table, LookUp) else None
        self._on_text = on_text
        self._session: Session | None = None
        self._held: list[int] = []
        self._unfed: list[int] = []

    def jobs(self, now: Callable[[], int]) -> Iterator[Job]:
        """Yield the queries; see `scheduling.work.Task`."""
        for iteration, (release, deadline) in enumerate(self.rhythm.releases(now)):
            query = _Query(self, iteration)
            yield Job(iteration, query.quanta(), release, deadline, query.facts)

    def _begin(self) -> Generation:
        """Start the next query."""
        if self._session is None:
            self._session, self._held, self._unfed = self._llm.session(), [], []
        ask: dict[str, Any] = {**self._options, "session": self._session, "history": self._held}
        if isinstance(self._prompt, RawRows | np.ndarray):
            generation = self._llm.generate(embeddings=self._rows(self._prompt), **ask)
        else:
            generation = self._llm.generate([*self._unfed, *self._llm.prompt_ids(self._prompt)], **ask)
        self._session = None  # until the query has ended well
        return generation

    def _rows(self, prompt: Rows) -> Rows:
        """Return the prompt's rows after those of what wasn't fed yet, where there is a table of it."""
        table = self._options["table"]
        if not self._unfed or table is None:
            return prompt
        first = self._llm.embed(self._unfed) if table == "own" else table.rows(np.asarray(self._unfed))
        return _Joined(first, prompt)

    def _end(self, generation: Generation) -> None:
        """Keep what a dialog that goes on needs."""
        if self._reset == "iteration":
            return
        self._session = generation.session
        self._held += [*generation.prompt_ids[len(self._unfed) :], *generation.tokens]
        self._unfed = generation.tokens[-1:]


def _check_widths(name: str, width: int | None, prompt: Prompt, table: Tables) -> None:
    """Refuse embeddings that the model can't take."""
    widths = {}
    if isinstance(prompt, RawRows | np.ndarray):
        widths["input"] = prompt.hidden if isinstance(prompt, RawRows) else prompt.shape[-1]
    raw = table.table if isinstance(table, LookUp) else table
    if isinstance(raw, RawTable):
        widths["table"] = raw.hidden
    if widths and width is None:
        raise GenerationError(
            f"The dialog {name} is fed embeddings and its model takes token ids only: deploy it with --embeddings "
            "outside."
        )
    for what, found in widths.items():
        if found != width:
            raise GenerationError(
                f"The {what} of the dialog {name} has rows of {found} numbers where its model takes {width}."
            )


class _Query:
    """A job of a dialog, and what came of it."""

    def __init__(self, task: DialogTask, iteration: int) -> None:
        self._task, self._iteration = task, iteration
        self._generation: Generation | None = None
        self._text: list[str] = []
        self._saturated = self._lookups = 0

    def quanta(self) -> Iterator[Quantum]:
        task, look_up = self._task, self._task._look_up
        saturated, lookups = (0, 0) if look_up is None else (look_up.saturated, look_up.lookups)
        generation = self._generation = task._begin()
        for quantum in generation.quanta(task._chunk):
            if look_up is not None:
                self._saturated, self._lookups = look_up.saturated - saturated, look_up.lookups - lookups
            self._pass_on(generation.take_text())
            yield quantum
        self._pass_on(generation.take_text())
        task._end(generation)

    def _pass_on(self, text: str) -> None:
        if not text:
            return
        self._text.append(text)
        if self._task._on_text is not None:
            self._task._on_text(self._iteration, text)

    def facts(self) -> dict[str, Any]:
        generation = self._generation
        if generation is None:  # the prompt was refused, or never got its turn
            return {}
        facts: dict[str, Any] = {
            "prompt_tokens": generation.prompt_tokens,
            "generated_tokens": len(generation.tokens),
            "finish_reason": generation.finish_reason,
            "tokens": list(generation.tokens),
        }
        if self._task._llm.has_tokenizer:
            facts["text"] = "".join(self._text)
        if self._task._look_up is not None:
            facts |= {"saturated": self._saturated, "lookups": self._lookups}
        return facts


class _Joined:
    """Rows that stand before others, of which still only the parts that are asked for are read."""

    def __init__(self, first: npt.NDArray[np.float32], rest: Rows) -> None:
        self._first, self._rest = first, rest

    def __len__(self) -> int:
        return len(self._first) + len(self._rest)

    def __getitem__(self, part: slice) -> npt.NDArray[np.floating]:
        start, stop, _ = part.indices(len(self))
        cut = len(self._first)
        rest = np.asarray(self._rest[max(start - cut, 0) : max(stop - cut, 0)])
        return np.concatenate([self._first[start:stop], rest])


class PolicyTask:
    """A robot policy: `rhythm.iterations` frames, each of which becomes a chunk of actions.

    `observation` is that of all frames, or a function that is asked for a frame's when its turn comes. `noise` and
    `steps` are as `Policy.infer` has them. `on_chunk` is told the iteration and the chunk. Tasks may share a policy.

    Facts of a job: `actions` (their number), `notes` and `timings` of the chunk.
    """

    def __init__(
        self,
        name: str,
        policy: Policy,
        observation: Mapping[str, Any] | Callable[[int], Mapping[str, Any]],
        *,
        rhythm: Rhythm | None = None,
        noise: npt.NDArray[np.float32] | None = None,
        steps: int | None = None,
        on_chunk: Callable[[int, Chunk], None] | None = None,
    ) -> None:
        self.name, self.rhythm = name, rhythm or Rhythm()
        self._policy, self._observation = policy, observation
        self._noise, self._steps, self._on_chunk = noise, steps, on_chunk

    def jobs(self, now: Callable[[], int]) -> Iterator[Job]:
        """Yield the frames; see `scheduling.work.Task`."""
        for iteration, (release, deadline) in enumerate(self.rhythm.releases(now)):
            facts: dict[str, Any] = {}
            yield Job(iteration, self._quanta(iteration, facts), release, deadline, facts.copy)

    def _quanta(self, iteration: int, facts: dict[str, Any]) -> Iterator[Quantum]:
        observation = self._observation(iteration) if callable(self._observation) else self._observation
        chunk = yield from self._policy.quanta(observation, self._noise, self._steps)
        facts |= {"actions": len(chunk.actions), "notes": list(chunk.notes), "timings": dict(chunk.timings)}
        if self._on_chunk is not None:
            self._on_chunk(iteration, chunk)
