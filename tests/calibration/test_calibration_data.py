"""Calibration sets as a whole: what is refused, what is counted, what the record says."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from calibration_data import ASCII, TEMPLATE, VOCAB, golden_tokenizer, load, same, words, write_lines

from edgewright.calibration import data, load_samples, write_shards
from edgewright.calibration.data import digest_of
from edgewright.errors import CalibrationDataError, UsageError


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(words(600), encoding="utf-8")
    return path


def test_the_same_seed_gives_the_same_rows(text: Path) -> None:
    first = load(text, seed=5)
    assert same(first, load(text, seed=5))
    assert first.record == load(text, seed=5).record
    assert not same(first, load(text, seed=6))
    assert first.record["sha256"] == digest_of(first.rows) != load(text, seed=6).record["sha256"]


@pytest.mark.parametrize("seed", [0, 1, -7])
def test_fewer_rows_are_the_first_of_more(text: Path, seed: int) -> None:
    many, few = load(text, seed=seed, sequences=20), load(text, seed=seed, sequences=7)
    assert (len(many.rows), len(few.rows)) == (20, 7)
    assert all(map(np.array_equal, few.rows, many.rows[:7]))


def test_the_record_of_a_text(text: Path) -> None:
    found = load(text, sequences=9, seed=3)
    record = found.record
    counts = np.bincount(np.concatenate(found.rows), minlength=VOCAB)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["kind"] == "text"
    assert record["sources"] == [
        {
            "name": "text.txt",
            "bytes": text.stat().st_size,
            "sha256": hashlib.sha256(text.read_bytes()).hexdigest(),
        }
    ]
    assert record["seed"] == 3
    assert record["requested"] == {"sequences": 9, "length": 32}
    assert (record["sequences"], record["tokens"], record["longest"], record["shortest"]) == (9, 288, 32, 32)
    assert record["available"] == len(ASCII.encode(text.read_text(encoding="utf-8"))) // 32
    assert record["truncated"] == {"sequences": 0, "tokens": 0}
    assert record["notes"] == []
    coverage = record["coverage"]
    assert coverage["distinct_tokens"] == np.count_nonzero(counts)
    assert coverage["vocab_size"] == VOCAB
    assert coverage["vocabulary_share"] == pytest.approx(np.count_nonzero(counts) / VOCAB, abs=1e-6)
    top = coverage["top"][0]
    assert (top["id"], top["count"]) == (int(counts.argmax()), int(counts.max()))
    assert top["token"] == ASCII.id_to_token(top["id"])
    assert coverage["top_share"]["10"] == pytest.approx(np.sort(counts)[-10:].sum() / 288, abs=1e-6)
    assert coverage["top_share"]["100"] == 1.0


def test_the_text_that_ships_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: Path) -> None:
    (tmp_path / "package" / "texts").mkdir(parents=True)
    (tmp_path / "package" / "texts" / "english.txt").write_bytes(text.read_bytes())
    monkeypatch.setattr(data.resources, "files", lambda _: tmp_path / "package")
    for spec in (None, "english"):
        found = load(spec)
        assert same(found, load(text))
        assert found.record["sources"][0]["name"] == "english.txt"


def test_the_shipped_text_fills_the_usual_set() -> None:
    """64 sequences of 512 tokens, of any tokenizer: more characters than tokens."""
    shipped = resources.files("edgewright.calibration") / "texts" / "english.txt"
    assert len(shipped.read_text(encoding="utf-8")) > 64 * 512 * 5
    tokenizer = golden_tokenizer("bpe_bos")
    found = load_samples("english", tokenizer, vocab_size=tokenizer.vocab_size, max_context=512)
    assert [row.size for row in found.rows] == [512] * 64
    assert found.record["duplicates_dropped"] == 0


def test_a_context_shorter_than_the_length(text: Path) -> None:
    found = load(text, length=32, max_context=20, sequences=4)
    assert [row.size for row in found.rows] == [20] * 4
    assert found.record["length"] == 20
    assert found.record["notes"] == ["sequences of 32 tokens were wanted and the model takes 20"]


def test_rows_longer_than_the_context_are_cut_and_counted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", *({"text": chr(65 + n) + "bc" * n} for n in range(1, 9)))
    found = load(path, max_context=10)
    wanted = [min(1 + 2 * n, 10) for n in range(1, 9)]
    assert sorted(row.size for row in found.rows) == sorted(wanted)
    assert found.record["truncated"] == {"sequences": 4, "tokens": 1 + 3 + 5 + 7}


def test_fewer_than_wanted_is_said(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"}, {"text": "one"}, {"text": "x"})
    record = load(path, sequences=10).record
    assert (record["sequences"], record["duplicates_dropped"], record["too_short_dropped"]) == (2, 1, 1)
    assert record["notes"] == [
        "10 sequences were wanted and 2 are there",
        "1 sequences of a single token or none were left out",
    ]


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_an_empty_set(content: str, tmp_path: Path) -> None:
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_text(content, encoding="utf-8")
        with pytest.raises(CalibrationDataError, match=r"^The calibration set is empty: give"):
            load(tmp_path / name)


def test_all_rows_identical(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", *[{"text": "the same"}] * 3)
    with pytest.raises(CalibrationDataError, match=r"^All 3 calibration sequences are identical"):
        load(path)
    for name in ("b.txt", "c.txt"):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / name).write_text("one short text", encoding="utf-8")
    with pytest.raises(CalibrationDataError, match=r"^All 2 calibration sequences are identical"):
        load(tmp_path / "texts")


def test_all_rows_begin_alike(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", *({"text": f"a system prompt {n}"} for n in range(4)))
    with pytest.raises(
        CalibrationDataError, match=r"^All 4 .* identical in the 9 tokens that are used, .* more tokens"
    ):
        load(path, length=9)


@pytest.mark.parametrize("name", ["bpe_chatml", "bpe_bos"])
def test_one_token_over_and_over(name: str, tmp_path: Path) -> None:
    tokenizer = golden_tokenizer(name)
    (tmp_path / "a.txt").write_text("7" * 20, encoding="utf-8")
    with pytest.raises(CalibrationDataError, match=r"repeats the one token \d+, so there is nothing to learn"):
        load(tmp_path / "a.txt", tokenizer, vocab_size=tokenizer.vocab_size, length=27)


def test_one_token_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "a"}, {"text": "b"}, {"text": ""})
    with pytest.raises(CalibrationDataError, match=r"^All 3 calibration sequences have a single token or none"):
        load(path)


def test_a_token_that_the_model_lacks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc~", encoding="utf-8")
    with pytest.raises(CalibrationDataError, match=r"holds the token '~' \(94\), which the model's vocabulary of 94"):
        load(tmp_path / "a.txt", vocab_size=94)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sequences": 0}, "number of sequences is 0 and must be at least 1"),
        ({"length": 1}, "length of sequences is 1 and must be at least 2"),
        ({"max_context": 1}, "model's context is 1"),
    ],
)
def test_numbers_that_make_no_set(options: dict[str, int], said: str, text: Path) -> None:
    with pytest.raises(UsageError, match=said):
        load(text, **options)


def test_paths_that_hold_no_data(tmp_path: Path) -> None:
    with pytest.raises(CalibrationDataError, match="do not exist"):
        load(tmp_path / "no.txt")
    (tmp_path / "a.csv").write_text("x", encoding="utf-8")
    with pytest.raises(CalibrationDataError, match=r"neither a \.txt nor a \.jsonl file"):
        load(tmp_path / "a.csv")
    with pytest.raises(CalibrationDataError, match=r"no \.txt and no \.jsonl file, and no calibration\.json"):
        load(tmp_path)
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("{}", encoding="utf-8")
    with pytest.raises(CalibrationDataError, match=r"both \.txt and \.jsonl"):
        load(tmp_path)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(CalibrationDataError, match="holds images, which a text model can't see"):
        load(tmp_path)


def test_another_encoding_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(CalibrationDataError, match=r"^sub/a\.txt is not UTF-8 text at byte 2; it looks like WINDOWS"):
        load(tmp_path)


def test_text_needs_a_tokenizer(text: Path) -> None:
    with pytest.raises(CalibrationDataError, match="has no tokenizer, so text can't be used"):
        load(text, None)


# --- saved shards ----------------------------------------------------------------------------------------------------


def saved(folder: Path, *rows: list[int], **record: object) -> Path:
    write_shards(folder, [np.array(row) for row in rows], record)
    return folder


def test_a_saved_set_is_the_set(text: Path, tmp_path: Path) -> None:
    found = load(text, sequences=70)
    write_shards(tmp_path / "set", found.rows, found.record)
    again = load_samples(tmp_path / "set", ASCII, vocab_size=VOCAB, max_context=1000)
    assert same(found, again)
    assert again.record["sha256"] == found.record["sha256"]
    assert again.record["made_from"] == json.loads(json.dumps(found.record))
    assert [source["name"] for source in again.record["sources"]] == ["calibration.json", "shard-00000.safetensors"]
    assert same(again, load_samples(tmp_path / "set", None, vocab_size=VOCAB, max_context=1000))
    assert again.record["tokenizer"] == found.record["tokenizer"]


def test_a_part_of_a_saved_set(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", *([n, n + 1, n + 2] for n in range(20)))
    some = load(folder, None, sequences=5, length=None, seed=1)
    assert len(some.rows) == 5
    assert not same(some, load(folder, None, sequences=5, seed=2))
    cut = load(folder, None, length=2)
    assert [row.tolist() for row in cut.rows] == [[n, n + 1] for n in range(20)]
    assert cut.record["truncated"] == {"sequences": 20, "tokens": 20}


@pytest.mark.parametrize("wrong", [-1, VOCAB, 1 << 40])
def test_ids_outside_the_vocabulary(wrong: int, tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", [1, 2], [3, wrong])
    with pytest.raises(
        CalibrationDataError,
        match=rf"token id {wrong} in sequence 2 of shard-00000\.safetensors is outside the model's vocabulary of 97",
    ):
        load(folder, None)


def test_shards_of_another_tokenizer(text: Path, tmp_path: Path) -> None:
    other = golden_tokenizer("bpe_chatml")
    found = load(text, other, vocab_size=other.vocab_size)
    write_shards(tmp_path / "set", found.rows, found.record)
    with pytest.raises(CalibrationDataError, match="made with another tokenizer"):
        load(tmp_path / "set", ASCII, vocab_size=other.vocab_size)
    assert same(found, load(tmp_path / "set", other, vocab_size=other.vocab_size))


def test_template_is_not_needed_without_chats(text: Path) -> None:
    assert same(load(text, template=None), load(text, template=TEMPLATE))
