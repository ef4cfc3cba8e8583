"""A generation's engine calls one by one, from ids and from embeddings: the tokens, and what is done outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MakeBundle, MakeEngine, golden
from edgewright.build.pipeline import deploy
from edgewright.errors import GenerationError
from edgewright.runtime.embedding import EmbeddingTable
from edgewright.runtime.encoding import Encoding, Requantizer
from edgewright.runtime.generation import Generation
from edgewright.runtime.llm import LLM
from edgewright.runtime.rawtable import LookUp, RawRows, RawTable, write_raw
from edgewright.runtime.sampling import Sampler, SamplingParams
from edgewright.runtime.session import Session
from edgewright.runtime.vocabulary import Vocabulary

PROMPT = [40, 69, 76, 76, 79, 12, 3, 90, 17, 55, 55, 8, 61]
WARM = SamplingParams(temperature=1.5, seed=11)
#: Caches in place and not, a recurrent state, both, latent attention, positions in a table, no positions, two ropes.
FAMILIES = ["qwen3", "gemma3", "lfm2", "mamba2", "qwen3_next", "deepseek_v3", "gpt2", "falcon_alibi", "phi3_longrope"]


def ids_generation(session: Session, ids: list[int], **options: Any) -> Generation:
    return Generation(session, ids, tokenizer=None, eos_ids=(), sampling=WARM, **options)


def run_all(generation: Generation, chunk: int | None) -> list[tuple[str, int, int, bool]]:
    """Run all quanta; return phase, tokens, tokens held before and whether a token comes of it."""
    seen = []
    for quantum in generation.quanta(chunk):
        seen.append((quantum.phase, quantum.tokens, quantum.held, quantum.emits))
        assert (quantum.padded, quantum.device_ns, quantum.host_ns) == (None, None, 0)
        quantum.run()
    return seen


@pytest.fixture(scope="module")
def llm(source: Path, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A model whose embedding table stands outside, with a tokenizer."""
    folder = tmp_path_factory.mktemp("outside") / "bundle"
    return LLM.load(deploy(source, folder, recipe="float32", embeddings="outside", verify=False).path, threads=1)


Raw = Callable[..., Path]


@pytest.fixture
def raw(llm: LLM, tmp_path: Path) -> Raw:
    """A function (encoding, ids=None) -> a raw file of the table's rows, or of those of ids."""

    def make(encoding: Encoding, ids: list[int] | None = None) -> Path:
        path = tmp_path / f"{encoding}{len(ids or ())}.bin"
        write_raw(path, encoding, llm.embedding_blocks(10) if ids is None else [llm.embed(ids)])
        return path

    return make


# -- from ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FAMILIES)
def test_any_chunks_give_the_same_tokens(case: str, shared_engine: MakeEngine) -> None:
    ids = golden(case).ids[:20].tolist()
    session, sampler, wanted = Session(shared_engine(case)), Sampler(WARM), []
    logits = session.append(ids)
    for _ in range(9):
        wanted.append(sampler(logits[0]))
        logits = session.append(wanted[-1:])
    assert len(set(wanted)) > 4
    assert ids_generation(Session(shared_engine(case)), ids, max_tokens=9).all_tokens() == wanted
    for chunk in (1, 7, 20, 512, None):
        generation = ids_generation(Session(shared_engine(case)), ids, max_tokens=9)
        run_all(generation, chunk)
        assert generation.tokens == wanted, chunk


def test_what_a_quantum_says(shared_engine: MakeEngine) -> None:
    session = Session(shared_engine("qwen3"))
    assert run_all(ids_generation(session, PROMPT, max_tokens=3), 5) == [
        ("prefill", 5, 0, False),
        ("prefill", 5, 5, False),
        ("prefill", 3, 10, True),
        ("decode", 1, 13, True),
        ("decode", 1, 14, True),
    ]
    assert run_all(ids_generation(session, PROMPT, max_tokens=1), None) == [("prefill", 13, 15, True)]


def test_text_and_tokens_come_between_the_calls(llm: LLM) -> None:
    whole = llm.generate(PROMPT, max_tokens=40, sampling=WARM, ignore_eos=True)
    pieces, text = list(whole), ""
    generation = llm.generate(PROMPT, max_tokens=40, sampling=WARM, ignore_eos=True)
    for count, quantum in enumerate(generation.quanta()):
        text += generation.take_text()
        assert generation.take_text() == ""
        assert len(generation.tokens) == count
        quantum.run()
    text += generation.take_text()
    assert text == "".join(pieces)
    assert (generation.tokens, generation.finish_reason) == (whole.tokens, "length")


def test_iterating_goes_on_where_the_quanta_stopped(llm: LLM) -> None:
    whole = llm.generate(PROMPT, max_tokens=20, sampling=WARM, ignore_eos=True)
    text = whole.text
    generation = llm.generate(PROMPT, max_tokens=20, sampling=WARM, ignore_eos=True)
    quanta, first = generation.quanta(4), ""
    for _ in range(6):
        next(quanta).run()
        first += generation.take_text()
    assert first + generation.text == text
    assert generation.tokens == whole.tokens
    assert list(generation.quanta(7)) == []


def test_a_call_that_was_left_out(llm: LLM) -> None:
    quanta = llm.generate(PROMPT, max_tokens=4).quanta(5)
    next(quanta).run()
    next(quanta)
    with pytest.raises(GenerationError, match="hasn't been run, or failed"):
        next(quanta)
    with pytest.raises(GenerationError, match="at least one token at a time, not 0"):
        llm.generate(PROMPT).quanta(0)
    with pytest.raises(GenerationError, match="97 is outside the vocabulary"):
        next(llm.generate([97]).quanta())


def test_rows_are_looked_up_outside_of_the_calls(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, looked_up, rows = False, [], EmbeddingTable.rows

    def counted(table: EmbeddingTable, ids: np.ndarray) -> np.ndarray:
        assert not inside
        looked_up.append(ids.size)
        return rows(table, ids)

    monkeypatch.setattr(EmbeddingTable, "rows", counted)
    generation = llm.generate(PROMPT, max_tokens=4, ignore_eos=True)
    for quantum in generation.quanta(8):
        inside = True
        quantum.run()
        inside = False
    assert looked_up == [8, 5, 1, 1, 1]
    assert generation.session.ids_only


def test_a_prefetch_of_other_ids_is_not_used(llm: LLM) -> None:
    session, other = llm.session(), llm.session()
    session.prefetch([1, 2, 3])
    assert np.array_equal(session.append([1, 2, 4], "all"), other.append([1, 2, 4], "all"))
    session.prefetch([1, 2, 3])
    session.prefetch([5])
    assert np.array_equal(session.append([5]), other.append([5]))
    assert np.array_equal(session.append([5]), other.append([5]))
    with pytest.raises(GenerationError, match="outside the vocabulary"):
        session.prefetch([97])


# -- from embeddings ---------------------------------------------------------------------------------------------------


def by_hand(llm: LLM, rows: np.ndarray, table: Callable[[int], np.ndarray], count: int) -> list[int]:
    """Decode from rows, each token fed as its row of `table`."""
    session, sampler, tokens = llm.session(), Sampler(WARM), []
    for _ in range(count):
        tokens.append(sampler(session.append_embeddings(rows)[0]))
        rows = table(tokens[-1])[None]
    return tokens


def test_rows_of_ids_are_as_good_as_ids(llm: LLM, raw: Raw) -> None:
    ask: dict[str, Any] = {"sampling": WARM, "max_tokens": 12, "ignore_eos": True}
    wanted = llm.generate(PROMPT, **ask).all_tokens()
    rows = RawRows(raw(Encoding(), PROMPT), Encoding(), 64)
    outside = RawTable(raw(Encoding()), Encoding(), 64)
    assert outside.vocab == 97
    for prompt in (rows, llm.embed(PROMPT)):
        for table in ("own", outside, LookUp(outside, Requantizer(Encoding(), Encoding()))):
            generation = llm.generate(embeddings=prompt, table=table, **ask)
            run_all(generation, 5)
            assert generation.tokens == wanted
            assert (generation.prompt_ids, generation.prompt_tokens) == ([], 13)
            assert generation.session.length == 24
            assert not generation.session.ids_only
    # Ids go through a table that is given for them, too.
    look_up = LookUp(outside)
    assert llm.generate(PROMPT, table=look_up, **ask).all_tokens() == wanted
    assert look_up.lookups == 13 + 11


def test_a_quantized_input_and_a_table_of_another_encoding(llm: LLM, raw: Raw) -> None:
    source, target = Encoding("uint8", 0.03, -120), Encoding("uint16", 1.3e-5, -30_000)
    rows = RawRows(raw(target, PROMPT), target, 64)
    table = RawTable(raw(source), source, 64)
    codes = np.fromfile(table.path, np.uint8).reshape(97, 64).astype(float)
    exact = np.clip(np.rint(0.03 / 1.3e-5 * (codes - 120) + 30_000), 0, 65535)
    fed = (1.3e-5 * (exact - 30_000)).astype(np.float32)
    prompt = np.fromfile(rows.path, "<u2").reshape(13, 64).astype(float) - 30_000
    wanted = by_hand(llm, (1.3e-5 * prompt).astype(np.float32), lambda token: fed[token], 25)
    look_up = LookUp(table, Requantizer(source, target))
    ask: dict[str, Any] = {"sampling": WARM, "max_tokens": 25, "ignore_eos": True}
    assert llm.generate(embeddings=rows, table=look_up, **ask).all_tokens() == wanted
    assert llm.generate(embeddings=rows, table=table, **ask).all_tokens() != wanted
    assert llm.generate(PROMPT, **ask).all_tokens() != wanted
    assert look_up.lookups == 24
    beyond = (0.03 / 1.3e-5 * (codes - 120) + 30_000)[wanted[:-1]]
    cut = int(((np.rint(beyond) < 0) | (np.rint(beyond) > 65535)).sum())
    assert look_up.saturated == cut > 0


def test_without_a_table_there_is_one_token(llm: LLM) -> None:
    rows = llm.embed(PROMPT)
    first = llm.generate(PROMPT, max_tokens=1, ignore_eos=True).all_tokens()
    generation = llm.generate(embeddings=rows, table=None, ignore_eos=True)
    assert [seen[0] for seen in run_all(generation, 6)] == ["prefill", "prefill", "prefill"]
    assert (generation.tokens, generation.finish_reason) == (first, "no-table")
    assert len(generation.text + generation.take_text()) <= 1
    only = llm.generate(embeddings=rows, table=None, max_tokens=1, ignore_eos=True)
    assert (only.all_tokens(), only.finish_reason) == (first, "length")
    stopped = Generation(
        llm.session(), [], tokenizer=None, eos_ids=first, sampling=SamplingParams(), embeddings=rows, table=None
    )
    assert (stopped.all_tokens(), stopped.finish_reason) == (first, "stop")
    # Ids follow ids without one.
    plain = llm.generate(PROMPT, table=None, max_tokens=3, ignore_eos=True)
    assert (len(plain.all_tokens()), plain.finish_reason) == (3, "length")


def test_text_of_a_dialog_that_began_with_embeddings(llm: LLM) -> None:
    generation = llm.generate(embeddings=llm.embed(PROMPT), sampling=WARM, max_tokens=30)
    text = generation.text
    assert text == llm.tokenizer.decode(generation.tokens)
    assert len(text) > 5


def test_embeddings_that_cannot_be_used(llm: LLM, shared_bundle: MakeBundle, raw: Raw) -> None:
    rows = llm.embed(PROMPT)
    with pytest.raises(GenerationError, match="token ids or embeddings, not both"):
        llm.generate(PROMPT, embeddings=rows)
    with pytest.raises(GenerationError, match="prompt is empty"):
        llm.generate(embeddings=rows[:0])
    with pytest.raises(GenerationError, match="rows of 64 numbers"):
        llm.generate(embeddings=rows[:, :60]).all_tokens()
    spoilt = rows.copy()
    spoilt[12, 3] = np.nan
    generation = llm.generate(embeddings=spoilt)
    quanta = generation.quanta(6)
    for _ in range(2):
        next(quanta).run()
    with pytest.raises(GenerationError, match="not finite"):
        next(quanta).run()
    assert generation.session.length == 12
    inside = LLM.load(shared_bundle("float32"), threads=1)
    assert (inside.embedding_width, llm.embedding_width) == (None, 64)
    with pytest.raises(GenerationError, match="deploy with --embeddings outside"):
        inside.generate(embeddings=rows).all_tokens()
    with pytest.raises(GenerationError, match="table is inside its graph"):
        next(inside.embedding_blocks())
    # A table that lacks a row which is drawn fails the dialog that draws it.
    path = raw(Encoding())
    first = llm.generate(PROMPT, max_tokens=1).all_tokens()[0]
    path.write_bytes(path.read_bytes()[: first * 256])
    with pytest.raises(GenerationError, match=rf"no row for token {first}: it has {first} rows"):
        llm.generate(embeddings=rows, table=RawTable(path, Encoding(), 64), ignore_eos=True).all_tokens()


def test_blocks_of_the_table(llm: LLM) -> None:
    blocks = list(llm.embedding_blocks(40))
    assert [len(block) for block in blocks] == [40, 40, 17]
    assert np.array_equal(np.concatenate(blocks), llm.embed(range(97)))


def test_a_reduced_vocabulary_has_a_row_for_every_id(llm: LLM, tmp_path: Path) -> None:
    kept = np.sort(np.random.default_rng(1).choice(120, 97, replace=False))
    small = LLM(llm.folder, llm.manifest, llm._engine)
    small.__dict__["vocabulary"] = Vocabulary(kept, 120)
    whole = np.concatenate(list(small.embedding_blocks(50)))
    assert np.array_equal(whole[kept], llm.embed(range(97)))
    assert not np.delete(whole, kept, axis=0).any()
    assert whole.shape == (120, 64)
    write_raw(tmp_path / "table", Encoding(), [whole])
    ask: dict[str, Any] = {"sampling": WARM, "max_tokens": 12, "ignore_eos": True}
    wanted = kept[llm.generate(PROMPT, **ask).all_tokens()].tolist()
    ids = kept[PROMPT].tolist()
    assert small.generate(ids, **ask).all_tokens() == wanted
    table = RawTable(tmp_path / "table", Encoding(), 64)
    assert small.generate(embeddings=small.embed(ids), table=table, **ask).all_tokens() == wanted
