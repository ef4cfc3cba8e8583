"""Dialogs and policies as tasks: interleaved by hand they give what they give alone; sessions, rhythm, failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MakeBundle
from edgewright.build.pipeline import deploy
from edgewright.errors import ContextOverflowError, GenerationError, UsageError
from edgewright.runtime.encoding import Encoding, Requantizer
from edgewright.runtime.llm import LLM
from edgewright.runtime.rawtable import LookUp, RawRows, RawTable, write_raw
from edgewright.runtime.sampling import SamplingParams
from edgewright.runtime.scheduling.rhythm import Rhythm
from edgewright.runtime.scheduling.work import Job, Task
from edgewright.runtime.tasks import DialogTask

PROMPT = [40, 69, 76, 76, 79, 12, 3, 90, 17, 55, 55, 8, 61]
WARM = SamplingParams(temperature=1.5, seed=11)
TABLE = Encoding("uint8", 0.0085, -120)
#: Two devices' encodings of the model's input.
INPUTS = (Encoding("uint16", 3.1e-5, -30_000), Encoding("uint8", 0.012, -99))
MS = 1_000_000


@pytest.fixture(scope="module")
def llm(source: Path, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A model whose embedding table stands outside, with room for 60 tokens."""
    folder = tmp_path_factory.mktemp("outside") / "bundle"
    made = deploy(source, folder, recipe="float32", embeddings="outside", verify=False, max_context=60)
    return LLM.load(made.path, threads=1)


@pytest.fixture(scope="module")
def raw(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> tuple[RawTable, list[RawRows]]:
    """A table, and the prompt in both encodings of the input."""
    folder = tmp_path_factory.mktemp("raw")
    write_raw(folder / "table", TABLE, llm.embedding_blocks())
    for index, encoding in enumerate(INPUTS):
        write_raw(folder / str(index), encoding, [llm.embed(PROMPT)])
    rows = [RawRows(folder / str(index), encoding, 64) for index, encoding in enumerate(INPUTS)]
    return RawTable(folder / "table", TABLE, 64), rows


class Hand:
    """Runs jobs a quantum at a time, without a clock."""

    def __init__(self, task: Task) -> None:
        self.jobs: list[Job] = []
        self.now = 0
        self._stream = self._run(task)

    def _run(self, task: Task) -> Iterator[None]:
        for job in task.jobs(lambda: self.now):
            self.jobs.append(job)
            for quantum in job.quanta:
                quantum.run()
                yield

    def step(self) -> bool:
        return next(self._stream, ...) is None

    def finish(self) -> list[dict[str, Any]]:
        while self.step():
            pass
        return [dict(job.facts()) for job in self.jobs]


def dialogs(llm: LLM, raw: tuple[RawTable, list[RawRows]], **options: Any) -> list[DialogTask]:
    """A text dialog and two that are fed embeddings in different encodings, all of one model."""
    table, rows = raw
    ask: dict[str, Any] = {"max_tokens": 15, "sampling": WARM, "ignore_eos": True, **options}
    fed = [
        DialogTask(f"fed{i}", llm, one, table=LookUp(table, Requantizer(TABLE, one.encoding)), **ask)
        for i, one in enumerate(rows)
    ]
    return [DialogTask("text", llm, "Hello, world", **ask), *fed]


# -- dialogs -----------------------------------------------------------------------------------------------------------


def test_interleaved_dialogs_give_what_they_give_alone(llm: LLM, raw: tuple[RawTable, list[RawRows]]) -> None:
    rhythm = Rhythm(iterations=2)
    alone = [Hand(task).finish() for task in dialogs(llm, raw, rhythm=rhythm, chunk=5)]
    tokens = [facts["tokens"] for facts, _ in alone]
    assert len({tuple(one) for one in tokens}) == 3
    hands = [Hand(task) for task in dialogs(llm, raw, rhythm=rhythm, chunk=4)]
    for turn in range(500):
        hands[(0, 1, 0, 2, 0, 1, 0)[turn % 7]].step()
    assert [hand.finish() for hand in hands] == alone
    for found in alone:
        assert found[0] == found[1]  # a session and a seed of its own each time
        assert found[0]["generated_tokens"] == 15
        assert found[0]["finish_reason"] == "length"
        assert found[0]["text"] == llm.tokenizer.decode(found[0]["tokens"])
    assert [found[0]["prompt_tokens"] for found in alone] == [12, 13, 13]
    assert "lookups" not in alone[0][0]
    assert [found[0]["lookups"] for found in alone[1:]] == [14, 14]


def test_saturations_are_those_of_the_job(llm: LLM, raw: tuple[RawTable, list[RawRows]]) -> None:
    table, rows = raw
    narrow = Encoding("uint16", 1e-5, -30_000)
    look_up = LookUp(table, Requantizer(TABLE, narrow))
    task = DialogTask(
        "narrow", llm, rows[0], table=look_up, max_tokens=5, sampling=WARM, rhythm=Rhythm(iterations=3), ignore_eos=True
    )
    found = Hand(task).finish()
    codes = np.fromfile(table.path, np.uint8).reshape(97, 64).astype(float)[found[0]["tokens"][:-1]]
    exact = np.rint(0.0085 / 1e-5 * (codes - 120) + 30_000)
    cut = int(((exact < 0) | (exact > 65535)).sum())
    assert cut > 0
    assert [facts["saturated"] for facts in found] == [cut] * 3
    assert [facts["lookups"] for facts in found] == [4] * 3


def test_a_dialog_that_goes_on(llm: LLM) -> None:
    ask: dict[str, Any] = {"max_tokens": 6, "sampling": WARM, "ignore_eos": True}
    for prompt in (PROMPT[:5], llm.embed(PROMPT[:5])):
        texts: list[tuple[int, str]] = []
        task = DialogTask(
            "on",
            llm,
            prompt,
            reset="never",
            rhythm=Rhythm(iterations=6),
            on_text=lambda iteration, text, texts=texts: texts.append((iteration, text)),  # type: ignore[misc]
            **ask,
        )
        # By hand: each prompt follows the last token before, which was not fed.
        session, held, wanted = llm.session(), [], []
        for _ in range(5):
            begin = [*held[-1:], *PROMPT[:5]]
            generation = llm.generate(begin, session=session, **ask)
            held += [*PROMPT[:5], *generation.all_tokens()]
            wanted.append(generation.tokens)
        hand = Hand(task)
        for _ in range(5 * 6):
            assert hand.step()
        # The sixth prompt needs 6 places, and 60 - 5 * 11 + 1 = 6 are there; the seventh would not fit.
        facts = hand.finish()
        assert [one["tokens"] for one in facts[:5]] == wanted
        assert [one["prompt_tokens"] for one in facts] == [5, 6, 6, 6, 6, 6]
        assert (facts[5]["generated_tokens"], facts[5]["finish_reason"]) == (1, "length")
        for iteration, one in enumerate(facts):
            assert "".join(text for number, text in texts if number == iteration) == one["text"]


def test_a_fed_dialog_that_goes_on_looks_its_last_token_up(llm: LLM, raw: tuple[RawTable, list[RawRows]]) -> None:
    table, (rows, _) = raw
    ask: dict[str, Any] = {"max_tokens": 4, "sampling": WARM, "ignore_eos": True}
    task = DialogTask("fed", llm, rows, table=LookUp(table), reset="never", chunk=6, rhythm=Rhythm(iterations=2), **ask)
    first, second = Hand(task).finish()
    by_hand = llm.generate(embeddings=rows, table=table, **ask)
    assert by_hand.all_tokens() == first["tokens"]
    joined = np.concatenate([table.rows(np.array(first["tokens"][-1:])), rows[:]])
    assert llm.generate(embeddings=joined, table=table, session=by_hand.session, **ask).all_tokens() == second["tokens"]
    assert (first["lookups"], second["lookups"], second["prompt_tokens"]) == (3, 4, 14)


def test_a_full_context_fails_the_query(llm: LLM) -> None:
    task = DialogTask("full", llm, PROMPT, reset="never", max_tokens=40, ignore_eos=True, rhythm=Rhythm(iterations=3))
    jobs = task.jobs(lambda: 0)
    first = next(jobs)
    held = []
    for quantum in first.quanta:
        held.append(quantum.held)
        quantum.run()
    assert held == [0, *range(13, 52)]
    for _ in range(2):
        job = next(jobs)
        with pytest.raises(ContextOverflowError, match=r"prompt of 14 tokens does not fit: 8 of the context's 60"):
            next(job.quanta)
        assert job.facts() == {}
    assert next(jobs, None) is None


def test_a_dialog_begins_anew_after_a_query_that_was_stopped(llm: LLM) -> None:
    task = DialogTask(
        "on", llm, PROMPT, reset="never", max_tokens=4, ignore_eos=True, sampling=WARM, rhythm=Rhythm(iterations=3)
    )
    jobs = task.jobs(lambda: 0)
    first, second = next(jobs), None
    for quantum in first.quanta:
        quantum.run()
    second = next(jobs)
    quantum = next(second.quanta)
    assert quantum.held == 16
    quantum.run()
    next(second.quanta)
    assert second.facts()["generated_tokens"] == 1
    assert second.facts()["finish_reason"] is None
    third = next(jobs)
    quantum = next(third.quanta)
    assert (quantum.held, quantum.tokens) == (0, 13)
    quantum.run()
    for quantum in third.quanta:
        quantum.run()
    assert third.facts() == first.facts()


def test_without_a_table(llm: LLM, raw: tuple[RawTable, list[RawRows]]) -> None:
    task = DialogTask(
        "prefill", llm, raw[1][0], table=None, reset="never", rhythm=Rhythm(iterations=2), ignore_eos=True
    )
    first, second = Hand(task).finish()
    assert (first["generated_tokens"], first["finish_reason"], first["prompt_tokens"]) == (1, "no-table", 13)
    assert (second["generated_tokens"], second["finish_reason"], second["prompt_tokens"]) == (1, "no-table", 13)


def test_messages_are_a_prompt(llm: LLM) -> None:
    facts = Hand(DialogTask("chat", llm, [{"role": "user", "content": "Hi"}], max_tokens=2)).finish()
    assert facts[0]["prompt_tokens"] == len("[user]Hi[a]")


def test_dialogs_that_cannot_be(
    llm: LLM, shared_bundle: MakeBundle, raw: tuple[RawTable, list[RawRows]], tmp_path: Path
) -> None:
    table, rows = raw
    with pytest.raises(UsageError, match="each iteration or never, not 'sometimes'"):
        DialogTask("odd", llm, PROMPT, reset="sometimes")  # type: ignore[arg-type]
    narrow = RawRows(rows[0].path, rows[0].encoding, 32)
    with pytest.raises(
        GenerationError, match="input of the dialog odd has rows of 32 numbers where its model takes 64"
    ):
        DialogTask("odd", llm, narrow)
    wide = RawTable(table.path, TABLE, 97)
    for given in (wide, LookUp(wide)):
        with pytest.raises(GenerationError, match="table of the dialog odd has rows of 97"):
            DialogTask("odd", llm, rows[0], table=given)
    inside = LLM.load(shared_bundle("float32"), threads=1)
    with pytest.raises(GenerationError, match=r"dialog odd is fed embeddings .* --embeddings outside"):
        DialogTask("odd", inside, rows[0])
    with pytest.raises(GenerationError, match="takes token ids only"):
        DialogTask("odd", inside, PROMPT, table=table)


# -- when jobs are released --------------------------------------------------------------------------------------------


def releases(rhythm: Rhythm, ends_ms: list[int]) -> list[tuple[float, float | None]]:
    """Return releases and deadlines in milliseconds where jobs end as told."""
    ends = iter(ends_ms)
    found = rhythm.releases(lambda: next(ends) * MS)
    return [(release / MS, None if deadline is None else deadline / MS) for release, deadline in found]


def test_jobs_follow_each_other() -> None:
    assert releases(Rhythm(iterations=3), [10, 25]) == [(0, None), (10, None), (25, None)]
    assert releases(Rhythm(iterations=3, start_ms=5, think_ms=7), [10, 25]) == [(5, None), (17, None), (32, None)]
    assert releases(Rhythm(iterations=2, deadline_ms=1.5), [10]) == [(0, 1.5), (10, 11.5)]


def test_periodic_jobs_come_in_time_or_late() -> None:
    rhythm = Rhythm(iterations=4, start_ms=3, period_ms=100 / 3, deadline_ms=20)
    got = releases(rhythm, [30, 200, 210])
    assert [release for release, _ in got] == pytest.approx([3, 36.333333, 69.666667, 103])
    assert [deadline for _, deadline in got] == pytest.approx([23, 56.333333, 89.666667, 123])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"iterations": 0}, "at least one iteration, not 0"),
        ({"start_ms": -1}, "start_ms"),
        ({"think_ms": float("nan")}, "think_ms"),
        ({"period_ms": 0}, "period_ms"),
        ({"deadline_ms": float("inf")}, "deadline_ms"),
        ({"period_ms": 10, "think_ms": 1}, "give one of them"),
    ],
)
def test_rhythms_that_cannot_be(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Rhythm(**values)


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", [True, False], ids=["one at a time", "at once"])
def test_dialogs_of_one_model_in_threads(gate: bool, llm: LLM, raw: tuple[RawTable, list[RawRows]]) -> None:
    """Host work of all dialogs at once; the engine's calls one at a time, or at once as without a scheduler."""
    rhythm = Rhythm(iterations=4)
    wanted = [Hand(task).finish() for task in dialogs(llm, raw, rhythm=rhythm)]
    accelerator: AbstractContextManager[Any] = threading.Lock() if gate else nullcontext()

    def run(task: DialogTask) -> list[dict[str, Any]]:
        found = []
        for job in task.jobs(lambda: 0):
            for quantum in job.quanta:
                with accelerator:
                    quantum.run()
            found.append(dict(job.facts()))
        return found

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, dialogs(llm, raw, rhythm=rhythm), timeout=60)) == wanted
