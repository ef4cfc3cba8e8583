"""Token sequences to calibrate with, from whatever the user has, and the record of where they came from.

Sequences are never padded, so nothing has to be left out of statistics later. The record says what was cut, dropped
and counted, and what share of the vocabulary occurs. The same input and seed give the same sequences bit for bit,
whatever the order of files in a folder; fewer sequences are the first ones of more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.calibration.chats import encoded, read_lines
from edgewright.calibration.coverage import token_coverage
from edgewright.calibration.documents import IMAGE_SUFFIXES, file_record, list_files, prefix_of, read_texts, windows
from edgewright.calibration.order import shuffled
from edgewright.calibration.shards import INDEX, Shards, is_shards, read_shards
from edgewright.checkpoint.text import shown
from edgewright.errors import CalibrationDataError, UsageError
from edgewright.runtime.template import ChatTemplate
from edgewright.runtime.text import Tokenizer

Ids = npt.NDArray[np.int64]

ENGLISH = "english"
DEFAULT_SEQUENCES = 64
DEFAULT_LENGTH = 512
#: What two tokenizers are compared by: the digest of this text's ids.
_PROBE = "The quick brown fox, 0123456789 αβγ Привет 你好 こんにちは 🙂\n\tdef f(x): return x[1:] # {}"


@dataclass(frozen=True)
class Samples:
    """A calibration set: `rows` are int64 [tokens] each, of their own lengths; `record` is JSON-compatible."""

    rows: tuple[Ids, ...]
    record: dict[str, Any]


@dataclass
class _Candidates:
    """Sequences on offer, best first, and what is known of them; counters grow as they are taken."""

    kind: str
    rows: Iterable[tuple[Ids, str]]
    available: int
    sources: list[dict[str, Any]]
    prefix: int = 0
    padding: int = 0
    origin: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


@dataclass
class _Limits:
    sequences: int | None
    length: int
    vocab_size: int


@dataclass
class _Counts:
    truncated: int = 0
    tokens_cut: int = 0
    duplicates: int = 0
    too_short: int = 0


def load_samples(
    spec: str | Path | None,
    tokenizer: Tokenizer | None,
    *,
    template: ChatTemplate | None = None,
    sequences: int | None = None,
    length: int | None = None,
    seed: int = 0,
    vocab_size: int,
    max_context: int,
) -> Samples:
    """Read calibration data for a model that has `vocab_size` tokens and takes `max_context` of them.

    `spec` is None or "english" (the text that ships with this package), a text file or a folder of `.txt` files, a
    `.jsonl` file or a folder of them with one chat or text a line, or a folder of saved shards. `sequences` is the
    most that are taken (None: 64, or all of saved shards), `length` the most tokens of one (None: 512, or as saved).
    `tokenizer` may be None for shards. Raises CalibrationDataError for what the data lack, UsageError for the numbers.
    """
    _check_numbers(sequences, length, vocab_size, max_context)
    path = None if spec is None or str(spec) == ENGLISH else Path(spec)
    saved = path is not None and is_shards(path)
    wanted = max_context if length is None and saved else length or DEFAULT_LENGTH
    limits = _Limits(sequences if saved else sequences or DEFAULT_SEQUENCES, min(wanted, max_context), vocab_size)
    if saved and path is not None:
        found = _from_shards(read_shards(path), tokenizer, sequences, seed)
    elif tokenizer is None:
        raise CalibrationDataError(
            "The model has no tokenizer, so text can't be used: give a folder of saved token ids, or add the tokenizer."
        )
    else:
        found = _from_text(path, tokenizer, template, limits.length, seed)
    if wanted > max_context:
        found.notes.append(f"sequences of {wanted} tokens were wanted and the model takes {max_context}")
    rows, counts = _take(found, limits, tokenizer)
    return Samples(tuple(rows), _record(found, rows, counts, limits, tokenizer, sequences, length, seed))


def _check_numbers(sequences: int | None, length: int | None, vocab_size: int, max_context: int) -> None:
    for name, value, least in (
        ("number of sequences", sequences, 1),
        ("length of sequences", length, 2),
        ("vocabulary's size", vocab_size, 2),
        ("model's context", max_context, 2),
    ):
        if value is not None and value < least:
            raise UsageError(f"The {name} is {value} and must be at least {least} for a calibration.")


def _from_text(
    path: Path | None, tokenizer: Tokenizer, template: ChatTemplate | None, length: int, seed: int
) -> _Candidates:
    with ExitStack() as stack:
        if path is None:
            text = resources.files("edgewright.calibration") / "texts" / "english.txt"
            path = stack.enter_context(resources.as_file(text))
        files, chats = _files_of(path)
        texts = read_texts(files)
    sources = [text.record for text in texts]
    if chats:
        lines = read_lines(texts)
        rows = ((ids, "") for ids in encoded(lines, tokenizer, template, seed))
        return _Candidates("chat", rows, len(lines), sources)
    notes: list[str] = []
    cut, prefix = windows([text.text for text in texts], tokenizer, length=length, seed=seed, notes=notes)
    return _Candidates("text", ((ids, "") for ids in cut), len(cut), sources, prefix, notes=notes)


def _files_of(path: Path) -> tuple[list[tuple[str, Path]], bool]:
    """Return the input files by name, and whether they are JSON lines."""
    if path.is_dir():
        if list_files(path, IMAGE_SUFFIXES):
            raise CalibrationDataError(f"{path} holds images, which a text model can't see: give a folder of text.")
        texts, chats = list_files(path, (".txt",)), list_files(path, (".jsonl",))
        if texts and chats:
            raise CalibrationDataError(f"{path} holds both .txt and .jsonl files: give a folder of one kind.")
        if not texts and not chats:
            raise CalibrationDataError(f"{path} holds no .txt and no .jsonl file, and no {INDEX}: put data there.")
        return texts or chats, bool(chats)
    if not path.exists():
        raise CalibrationDataError(f"The calibration data {path} do not exist: give a file, a folder, or {ENGLISH!r}.")
    if path.suffix.lower() not in (".txt", ".jsonl"):
        raise CalibrationDataError(
            f"{path} is neither a .txt nor a .jsonl file: rename plain text to .txt, chats to .jsonl."
        )
    return list_files(path, ()), path.suffix.lower() == ".jsonl"


def _from_shards(shards: Shards, tokenizer: Tokenizer | None, sequences: int | None, seed: int) -> _Candidates:
    if tokenizer is not None:
        made_with = shards.record.get("tokenizer")
        if made_with is not None and made_with != fingerprint(tokenizer):
            raise CalibrationDataError(
                f"{shards.folder.name} was made with another tokenizer than the model's, so its ids mean other text: "
                "make a set for this model."
            )
    stored = list(shards.rows())
    order = shuffled(len(stored), seed, "rows") if sequences is not None else range(len(stored))
    rows = [(stored[index].ids, stored[index].where) for index in order]
    names = [INDEX, *shards.files]
    return _Candidates(
        "tokens",
        rows,
        len(rows),
        [file_record(name, shards.folder / name) for name in names],
        padding=sum(row.padding for row in stored),
        origin=dict(shards.record),
    )


def _take(found: _Candidates, limits: _Limits, tokenizer: Tokenizer | None) -> tuple[list[Ids], _Counts]:
    """Return the sequences that are used, each once, checked against the model, and the counts of what was not."""
    rows: list[Ids] = []
    counts = _Counts()
    seen: set[bytes] = set()
    for ids, where in found.rows:
        if ids.size <= max(1, found.prefix):
            counts.too_short += 1
            continue
        _check_vocabulary(ids, where, limits.vocab_size, tokenizer)
        if ids.size > limits.length:
            counts.truncated += 1
            counts.tokens_cut += ids.size - limits.length
            ids = ids[: limits.length]
        if (key := ids.tobytes()) in seen:
            counts.duplicates += 1
            continue
        seen.add(key)
        rows.append(ids)
        if len(rows) == limits.sequences:
            break
    _refuse_useless(found, rows, counts, limits.length)
    return rows, counts


def _check_vocabulary(ids: Ids, where: str, vocab_size: int, tokenizer: Tokenizer | None) -> None:
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if not wrong.size:
        return
    if where:
        raise CalibrationDataError(
            f"The token id {wrong[0]} in {where} is outside the model's vocabulary of {vocab_size}: make a set for "
            "this model."
        )
    token = tokenizer.id_to_token(int(wrong[0])) if tokenizer else None
    raise CalibrationDataError(
        f"The text holds the token {shown(token)} ({wrong[0]}), which the model's vocabulary of {vocab_size} lacks: "
        "remove it from the text."
    )


def _refuse_useless(found: _Candidates, rows: list[Ids], counts: _Counts, length: int) -> None:
    if not rows and counts.too_short:
        raise CalibrationDataError(
            f"All {counts.too_short} calibration sequences have a single token or none, which says nothing of a model: "
            "give longer ones."
        )
    if not rows:
        raise CalibrationDataError("The calibration set is empty: give at least one text, chat or sequence.")
    if len(rows) == 1 and counts.duplicates:
        cut = f" in the {length} tokens that are used" if counts.truncated else ""
        raise CalibrationDataError(
            f"All {counts.duplicates + 1} calibration sequences are identical{cut}, so there is too little to learn "
            f"from: give different ones{' or more tokens' if cut else ''}."
        )
    bodies = np.concatenate([row[found.prefix :] for row in rows])
    if bodies.min() == bodies.max():
        raise CalibrationDataError(
            f"The calibration set repeats the one token {bodies[0]}, so there is nothing to learn from: give real text."
        )


def _record(
    found: _Candidates,
    rows: list[Ids],
    counts: _Counts,
    limits: _Limits,
    tokenizer: Tokenizer | None,
    sequences: int | None,
    length: int | None,
    seed: int,
) -> dict[str, Any]:
    sizes = [row.size for row in rows]
    notes = list(found.notes)
    if limits.sequences is not None and len(rows) < limits.sequences:
        notes.append(f"{limits.sequences} sequences were wanted and {len(rows)} are there")
    if counts.too_short:
        notes.append(f"{counts.too_short} sequences of a single token or none were left out")
    return {
        "kind": found.kind,
        "sources": found.sources,
        "seed": seed,
        "requested": {"sequences": sequences, "length": length},
        "length": limits.length,
        "available": found.available,
        "sequences": len(rows),
        "tokens": sum(sizes),
        "longest": max(sizes),
        "shortest": min(sizes),
        "prefix_tokens": prefix_of(tokenizer) if tokenizer and found.kind == "text" else [],
        "truncated": {"sequences": counts.truncated, "tokens": counts.tokens_cut},
        "padding_dropped": found.padding,
        "duplicates_dropped": counts.duplicates,
        "too_short_dropped": counts.too_short,
        "coverage": token_coverage(rows, limits.vocab_size, tokenizer),
        "tokenizer": fingerprint(tokenizer) if tokenizer else (found.origin or {}).get("tokenizer"),
        "sha256": digest_of(rows),
        "notes": notes,
        **({"made_from": found.origin} if found.origin is not None else {}),
    }


def digest_of(rows: Iterable[Ids]) -> str:
    """Return the SHA-256 of sequences: of each its length and its ids, as little-endian int64."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.int64(row.size).astype("<i8").tobytes())
        digest.update(row.astype("<i8").tobytes())
    return digest.hexdigest()


def fingerprint(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what tells tokenizers apart: the size, and the digest of the ids of a text in many scripts."""
    ids = np.array(tokenizer.encode(_PROBE, add_special_tokens=False), np.int64)
    return {"vocab_size": tokenizer.vocab_size, "probe_sha256": digest_of([ids])}
