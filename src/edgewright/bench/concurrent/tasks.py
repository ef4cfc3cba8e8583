"""Makes the tasks of a part of a run: from loaded models, or from cost models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgewright.bench.case.costs import rhythm_of, simulated_task
from edgewright.bench.case.inputs import read_text, read_token_ids
from edgewright.bench.case.spec import Case, DialogSpec, ModelSpec
from edgewright.bench.concurrent.models import Loaded
from edgewright.bench.policy import synthetic_observation
from edgewright.errors import UsageError
from edgewright.runtime.encoding import EmbeddingFile, Requantizer
from edgewright.runtime.generation import Tables
from edgewright.runtime.llm import LLM
from edgewright.runtime.npz import read_npz
from edgewright.runtime.policy import Policy
from edgewright.runtime.rawtable import LookUp, RawRows, RawTable
from edgewright.runtime.sampling import SamplingParams
from edgewright.runtime.scheduling.timeline import Timeline
from edgewright.runtime.scheduling.work import Task
from edgewright.runtime.tasks import DialogTask, PolicyTask, Prompt

#: Tokens that a query which only warms up may generate.
WARMUP_TOKENS = 16

OnText = Callable[[int, str], None]


def alone(dialog: DialogSpec) -> DialogSpec:
    """Return a dialog as its solo run has it: from the start, and never paused."""
    return replace(dialog, start_ms=0, timeline=Timeline.constant(1))


def warming(dialog: DialogSpec, times: int) -> DialogSpec:
    """Return a dialog as the warm-up has it: a few short queries at once, due at no time."""
    tokens = WARMUP_TOKENS if dialog.max_tokens is None else min(dialog.max_tokens, WARMUP_TOKENS)
    rhythm: dict[str, Any] = {"iterations": times, "think_ms": 0, "period_ms": None, "deadline_ms": None}
    return replace(alone(dialog), max_tokens=tokens, reset="iteration", **rhythm)


@dataclass(frozen=True)
class TaskMaker:
    """Makes tasks of a case's dialogs; their models are loaded, or simulated. Each part needs new ones."""

    case: Case

    def make(
        self, dialog: DialogSpec, loaded: Loaded | None, on_text: OnText | None = None, *, repeat: int = 0
    ) -> Task:
        """Return the task of a dialog, in the form that a part has it. Raises UsageError and what its files raise.

        Costs that are simulated differ by the repeat, where they have a jitter; what is real has the same seed always.
        """
        model = self.case.model_of(dialog)
        if model.simulated is not None:
            return simulated_task(dialog, model.simulated, self.case.run.seed + repeat)
        if isinstance(loaded, Policy):
            return self._policy(dialog, loaded)
        if isinstance(loaded, LLM):
            return self._dialog(dialog, model, loaded, on_text)
        raise UsageError(f"The model {model.name} has no bundle, so {dialog.name} can't run here: give it one.")

    def _dialog(self, dialog: DialogSpec, model: ModelSpec, llm: LLM, on_text: OnText | None) -> DialogTask:
        seeded = {"seed": self.case.run.seed, **dialog.sampling}
        return DialogTask(
            dialog.name,
            llm,
            _prompt(dialog, llm),
            rhythm=rhythm_of(dialog),
            reset=dialog.reset,
            max_tokens=dialog.max_tokens,
            sampling=SamplingParams(**seeded),
            stop=dialog.stop,
            ignore_eos=dialog.ignore_eos,
            chunk=self.case.scheduler.prefill_chunk,
            table=_table(dialog, model, llm),
            on_text=on_text,
        )

    def _policy(self, dialog: DialogSpec, policy: Policy) -> PolicyTask:
        random = np.random.default_rng(self.case.run.seed)
        noise = random.standard_normal((policy.spec.horizon, policy.spec.model_action_dim), np.float32)
        path = dialog.input.observation
        if path is None:
            observation = synthetic_observation(policy.spec, policy.statistics, random, cameras=policy.spec.cameras)
        else:
            observation = dict(read_npz(path))
        return PolicyTask(dialog.name, policy, observation, rhythm=rhythm_of(dialog), noise=noise)


def _prompt(dialog: DialogSpec, llm: LLM) -> Prompt:
    """Return what a dialog asks. Raises UsageError for files that can't be read, GenerationError for a wrong bundle."""
    asked = dialog.input
    if asked.embedding is not None:
        return RawRows(asked.embedding.path, asked.embedding.encoding, _width(dialog, llm))
    if asked.tokens_file is not None:
        return read_token_ids(asked.tokens_file)
    text = asked.prompt if asked.prompt_file is None else read_text(asked.prompt_file)
    if text is None:
        raise UsageError(f"{dialog.name} has no input that its model takes: give a prompt, token ids or embeddings.")
    return llm.prompt_ids(text if dialog.raw else [{"role": "user", "content": text}])


def _table(dialog: DialogSpec, model: ModelSpec, llm: LLM) -> Tables:
    """Return where the embeddings of tokens come from; a raw table in the encoding of the dialog's input."""
    if dialog.input.embedding is None or model.table == "bundle":
        return "own"
    if not isinstance(model.table, EmbeddingFile):
        return None
    table = RawTable(model.table.path, model.table.encoding, _width(dialog, llm))
    return LookUp(table, Requantizer(table.encoding, dialog.input.embedding.encoding, mode=dialog.requantize))


def _width(dialog: DialogSpec, llm: LLM) -> int:
    if llm.embedding_width is None:
        raise UsageError(
            f"{dialog.name} is fed embeddings, and its bundle has the table inside the graph: deploy with --embeddings "
            "outside."
        )
    return llm.embedding_width
