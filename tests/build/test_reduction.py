"""Choosing a smaller vocabulary, and bundles that have one."""

from __future__ import annotations

import dataclasses
import datetime as module
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from conftest import BOS, EOS, TOKENIZERS, write_source
from edgewright.build import required
from edgewright.build.pipeline import _seal, compile_bundle, deploy, export
from edgewright.build.reduction import KeptVocabulary, VocabularyRequest, choose_vocabulary
from edgewright.bundle import read_manifest
from edgewright.checkpoint import open_checkpoint
from edgewright.errors import BundleError, EdgewrightError, GenerationError, TokenizerError, UsageError
from edgewright.runtime.llm import LLM
from edgewright.runtime.sampling import SamplingParams
from edgewright.runtime.template import ChatTemplate
from edgewright.runtime.text import Tokenizer
from edgewright.runtime.vocabulary import SIDECAR, sidecar_bytes
from edgewright.verify import verify_bundle
from edgewright.verify.against import verify

#: A vocabulary of 400 ids, 396 of them from 256 bytes and merges, 4 special tokens.
FULL = 400


def sidecars(name: str = "bpe_chatml", **changes: bytes) -> dict[str, bytes]:
    folder = TOKENIZERS / name
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "expected.json"}
    config = json.loads(found["tokenizer_config.json"])
    if isinstance(config.get("chat_template"), str):
        found.setdefault("chat_template.jinja", config["chat_template"].encode())
    return found | {key.replace("__", "."): value for key, value in changes.items()}


def tokenizer_of(files: dict[str, bytes]) -> Tokenizer:
    return Tokenizer.from_files(files["tokenizer.json"], json.loads(files["tokenizer_config.json"]))


def choose(
    size: int | float, files: dict[str, bytes] | None = None, full: int = FULL, **options: Any
) -> KeptVocabulary:
    config = options.pop("config", {})
    return choose_vocabulary(VocabularyRequest(size, **options), files or sidecars(), config, full)


def needed(**options: Any) -> int:
    """Return how many tokens must stay at the least."""
    with pytest.raises(UsageError) as error:
        choose(1, **options)
    return int(str(error.value).rsplit(" ", 1)[-1].rstrip("."))


# -- the choice --------------------------------------------------------------------------------------------------------


def test_what_must_stay_stays() -> None:
    files = sidecars()
    tokenizer = tokenizer_of(files)
    least = needed()
    kept = choose(least)
    assert len(kept.ids) == least
    assert (np.diff(kept.ids) > 0).all()
    assert kept.ids.dtype == np.int64
    ids = set(kept.ids.tolist())
    assert tokenizer.added_ids <= ids
    assert len(required.base_ids(tokenizer)) == 256
    assert required.base_ids(tokenizer) <= ids
    template = ChatTemplate(files["chat_template.jinja"].decode(), special_tokens=tokenizer.special_tokens)
    for messages in ([{"role": "user", "content": "Hello"}], [{"role": "system", "content": "Hello"}]):
        text = template.render(messages, add_generation_prompt=True)
        assert set(tokenizer.encode(text, add_special_tokens=False)) <= ids
    reasons = kept.record["reasons"]
    assert sum(reasons.values()) == least
    assert reasons["special"] == len(tokenizer.added_ids)
    assert reasons["counted in texts"] == reasons["lowest ids"] == 0


def test_ids_that_configs_name_stay() -> None:
    files = sidecars(generation_config__json=b'{"eos_token_id": [390, 391], "suppress_tokens": [392], "top_k": 393}')
    config = {"pad_token_id": 394, "text_config": {"bos_token_id": 395}, "hidden_size": 389, "eos_token_id": None}
    kept = choose(needed(files=files, config=config), files, config=config)
    assert {390, 391, 392, 394, 395} <= set(kept.ids.tolist())
    assert not {389, 393} & set(kept.ids.tolist())
    # An id beyond the model is none of its tokens.
    choose(needed(), config={"pad_token_id": 4000})


@pytest.mark.parametrize("name", ["sp_llama", "sp_legacy"])
def test_tokens_of_single_bytes_stay(name: str) -> None:
    tokenizer = tokenizer_of(sidecars(name))
    names = [tokenizer.id_to_token(i) for i in sorted(required.base_ids(tokenizer))]
    there = {chr(code) for code in range(33, 127) if tokenizer.token_to_id(chr(code)) is not None}
    assert len(there) > 20
    assert {f"<0x{byte:02X}>" for byte in range(256)} | {"\u2581"} | there == set(names)


@pytest.mark.parametrize("extra", [0, 1, 2, 7, 20, 30])
def test_tokens_bring_the_characters_they_are_made_of(extra: int, tmp_path: Path) -> None:
    files = sidecars("sp_llama")
    tokenizer = tokenizer_of(files)
    full = tokenizer.vocab_size
    (tmp_path / "t.txt").write_text("é à ü ö ä ß ñ € “naïve” — über café €\n" * 3, encoding="utf-8")
    texts = (tmp_path / "t.txt",)
    least = needed(files=files, full=full)
    kept = choose(least + extra, files, full, texts=texts)
    assert len(kept.ids) == least + extra
    must = set(choose(least, files, full).ids.tolist())
    for token_id in set(kept.ids.tolist()) - must:
        parts = {tokenizer.token_to_id(character) for character in tokenizer.id_to_token(token_id) or ""} - {None}
        assert parts <= set(kept.ids.tolist())
    assert sum(kept.record["reasons"].values()) == least + extra


def test_without_texts_the_lowest_ids_are_kept() -> None:
    least = needed()
    kept = choose(least + 30)
    assert kept.record["reasons"]["lowest ids"] == 30
    must = set(choose(least).ids.tolist())
    lowest = [i for i in range(FULL) if i not in must][:30]
    assert set(kept.ids.tolist()) == must | set(lowest)
    assert kept.record["coverage"] is None


def test_frequent_tokens_are_kept_first(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(sidecars())
    must = set(choose(needed()).ids.tolist())
    ranked = [i for i in range(FULL) if i not in must and (tokenizer.id_to_token(i) or "").isalpha()]
    ranked = [i for i in ranked if tokenizer.encode(tokenizer.id_to_token(i) or "") == [i]][-4:]
    words = [tokenizer.decode([i]) for i in ranked]
    lines = [f"{word}\n" * count for word, count in zip(words, (1, 5, 3, 9), strict=True)]
    (tmp_path / "a.txt").write_text("".join(lines[:2]))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines[2:]))
    texts = (tmp_path / "a.txt", tmp_path / "b.jsonl")
    base = needed()
    for count, expected in ((1, {3}), (2, {3, 1}), (3, {3, 1, 2}), (4, {0, 1, 2, 3})):
        kept = choose(base + count, texts=texts)
        assert {n for n, i in enumerate(ranked) if i in kept.ids} == expected
        assert kept.record["reasons"]["counted in texts"] == count
        assert kept.record["method"] == "frequency"
    assert kept.record["coverage"] == 1.0
    lost = choose(base + 3, texts=texts).record
    assert lost["coverage"] == pytest.approx(1 - 1 / lost["counted_tokens"], abs=1e-6)


def test_long_texts_are_counted_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("the quick brown fox and others\n" * 9000)
    kept = choose(needed() + 5, texts=(tmp_path / "long.txt",))
    tokenizer = tokenizer_of(sidecars())
    per_line = len(tokenizer.encode("the quick brown fox and others\n"))
    assert kept.record["counted_tokens"] == pytest.approx(9000 * per_line, rel=1e-3)


def test_every_token_of_the_inputs_is_kept(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(sidecars())
    text = "Another question: what is there in the others?\n\n  Nothing.  "
    (tmp_path / "in.txt").write_text(text)
    messages = [{"role": "system", "content": "Something else"}, {"role": "user", "content": "the thing"}]
    (tmp_path / "in.jsonl").write_text(json.dumps({"messages": messages}) + "\n\n" + json.dumps("this and that"))
    inputs = (tmp_path / "in.txt", tmp_path / "in.jsonl")
    kept = choose(needed(inputs=inputs), inputs=inputs)
    assert kept.record["method"] == "input-aware"
    assert kept.record["reasons"]["inputs"] > 5
    ids = set(kept.ids.tolist())
    for each in (text, text.strip(), "this and that", "Something else"):
        assert set(tokenizer.encode(each)) <= ids
    assert len(ids) > needed() > 256


def test_the_users_list_is_kept(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(sidecars())
    keep = tmp_path / "keep.txt"
    keep.write_text('\ufeff399\n\nthe others\n"  quoted"\n' + f"{tokenizer.id_to_token(300)}\n", encoding="utf-8")
    ids = set(choose(needed(keep=keep), keep=keep).ids.tolist())
    wanted = {399, 300, *(i for text in ("the others", " the others", "  quoted") for i in tokenizer.encode(text))}
    assert wanted <= ids


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("400", "the model has no token 400: give an id below 400"),
        ("99999999999999999999", "the model has no token 99999999999999999999"),
        ("<|nothing|>", r"the model has no token <\|nothing\|>: correct it"),
        ('"open', "begins with a quote and is no JSON string"),
        ('""', "begins with a quote and is no JSON string"),
    ],
)
def test_wrong_lines_of_the_list_are_named(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "keep.txt").write_text(f"the\n\n{line}\n")
    with pytest.raises(UsageError, match=rf"keep\.txt, line 3:? ?{words}"):
        choose(300, keep=tmp_path / "keep.txt")


def test_shares() -> None:
    assert len(choose(0.9).ids) == 360
    assert len(choose(1.0).ids) == 400
    for share in (0.0, -0.5, 1.5):
        with pytest.raises(UsageError, match="isn't possible: give a share up to 1"):
            choose(share)


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(
        UsageError, match=r"A vocabulary of 401 tokens is more than the 400 of the model: ask for fewer"
    ):
        choose(401)
    with pytest.raises(UsageError, match="A vocabulary of 0 tokens isn't possible"):
        choose(0)
    with pytest.raises(UsageError, match=r"of 100 tokens can't hold the \d+ that must stay \(4 special, .*256 bytes"):
        choose(100)
    assert len(choose(400).ids) == 400


def test_rows_without_a_token_are_never_kept() -> None:
    kept = choose(400, full=448)
    assert kept.full_size == 448
    assert kept.ids.max() == 399
    assert kept.record["padding"] == 48
    with pytest.raises(UsageError, match=r"more than the 400 of the model \(448 ids, of which 48 have no token\)"):
        choose(401, full=448)
    assert len(choose(0.95, full=448).ids) == 380


def test_tokens_beyond_the_model_are_never_kept() -> None:
    kept = choose(0.99, full=390)
    assert kept.ids.max() < 390


def test_a_tokenizer_is_needed() -> None:
    with pytest.raises(TokenizerError, match=r"has no tokenizer.json, .* only with its tokenizer"):
        choose_vocabulary(VocabularyRequest(300), {}, {}, FULL)


def test_the_choice_does_not_depend_on_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "{{ '<|im_start|>' }}Today: {{ strftime_now('%d %B %Y') }}\n{{ messages[0].content }}"
    files = sidecars(chat_template__jinja=source.encode())
    tokenizer = tokenizer_of(files)
    chosen = []
    for year, month, day in ((2026, 12, 1), (2031, 5, 24)):

        class Frozen(module.datetime):
            @classmethod
            def now(cls, tz: Any = None) -> module.datetime:  # type: ignore[override]
                return module.datetime(year, month, day)  # noqa: B023

        class Day(module.date):
            @classmethod
            def today(cls) -> module.date:  # type: ignore[override]
                return module.date(year, month, day)  # noqa: B023

        monkeypatch.setattr("edgewright.runtime.template.globals.datetime", Frozen)
        monkeypatch.setattr(required, "date", Day)
        template = ChatTemplate(source, special_tokens=tokenizer.special_tokens)
        chosen.append(required.template_ids(tokenizer, template))
        text = module.date(year, month, day).strftime(" %d %B %Y")
        assert set(tokenizer.encode(text)) <= chosen[-1]
    assert chosen[0] == chosen[1]


def test_templates_that_refuse_roles_add_what_they_allow() -> None:
    source = (
        "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no') }}{% endif %}"
        "<|im_start|>{{ m.role }} says {{ m.content }}{% endfor %}"
    )
    tokenizer = tokenizer_of(sidecars())
    template = ChatTemplate(source, special_tokens={})
    found = required.template_ids(tokenizer, template)
    assert set(tokenizer.encode("<|im_start|>user says Hello", add_special_tokens=False)) <= found


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"  \n", r"a\.txt holds no text"),
        ("a.txt", b"\xff\xfe", r"a\.txt is not UTF-8 text at byte 0"),
        ("a.jsonl", b"\n", r"a\.jsonl holds no lines"),
        ("a.jsonl", b'{"text": "x"}\n{"text": ', r"a\.jsonl, line 2 is not valid JSON"),
        ("a.jsonl", b'{"prompt": "x"}', r"a\.jsonl, line 1 has neither a text nor messages"),
        ("a.jsonl", b"[[[", r"a\.jsonl, line 1 is not valid JSON"),
        ("a.jsonl", b'{"messages": []}', r"a\.jsonl, line 1 has neither"),
        ("a.jsonl", b'{"messages": [{"content": "x"}]}', r"a\.jsonl, line 1 has neither"),
    ],
)
def test_files_that_are_wrong_are_named(name: str, data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    for group in ("texts", "inputs"):
        with pytest.raises(UsageError, match=words):
            choose(390, **{group: (tmp_path / name,)})


def test_missing_files_are_named(tmp_path: Path) -> None:
    request = VocabularyRequest(390, texts=(tmp_path / "none.txt",))
    with pytest.raises(UsageError, match=r"none\.txt can't be read \(No such file"):
        request.key()
    with pytest.raises(UsageError, match=r"none\.txt can't be read"):
        choose(390, texts=request.texts)


def test_dialogs_need_a_template(tmp_path: Path) -> None:
    files = sidecars()
    del files["chat_template.jinja"]
    (tmp_path / "d.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "x"}]}))
    with pytest.raises(UsageError, match=r"d\.jsonl holds dialogs and the model has no chat template"):
        choose(390, files, texts=(tmp_path / "d.jsonl",))


# -- bundles -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def merged_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 97 tokens, some of which are merges of others, so that not all must stay."""
    folder = write_source(tmp_path_factory.mktemp("merged") / "tiny-qwen3")
    letters = [chr(code) for code in range(97, 123)] + ["\u0120", "[", "]"]
    pairs = [(a, b) for a in "etaoinsh" for b in "etaoinsr"][: 95 - len(letters)]
    vocab = {piece: i for i, piece in enumerate([*letters, *(a + b for a, b in pairs)])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab | {"<bos>": BOS, "<eos>": EOS}, pairs))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<eos>"])
    (folder / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    return folder


@pytest.mark.parametrize("recipe", ["float32", "float16", "int8", "int4", "stored"])
def test_bundles_with_a_reduced_vocabulary_verify(recipe: str, merged_source: Path, tmp_path: Path) -> None:
    built = deploy(merged_source, tmp_path / "b", recipe=recipe, vocabulary=VocabularyRequest(60))
    assert built.manifest.verdict["status"] == "passed"
    levels = built.manifest.verdict["levels"]
    assert {"weights", "ops", "quality"} <= levels.keys()
    if recipe in ("float32", "stored"):
        assert levels["weights"]["exact"] == levels["weights"]["tensors"]


def test_the_manifest_tells_of_the_vocabulary(merged_source: Path, tmp_path: Path) -> None:
    whole = deploy(merged_source, tmp_path / "w", recipe="int8", verify=False)
    built = deploy(merged_source, tmp_path / "b", recipe="int8", verify=False, vocabulary=VocabularyRequest(60))
    model = built.manifest.model
    record = model["vocabulary"]
    assert model["vocab_size"] == whole.manifest.model["vocab_size"] == 97
    assert "vocabulary" not in whole.manifest.model
    assert record["kept"] == 60
    assert record["full"] == 97
    assert sum(record["reasons"].values()) == 60
    assert record["file"] == f"sidecars/{SIDECAR}"
    assert record["table_bytes"] * 97 == record["full_table_bytes"] * 60
    sizes = [manifest.files["stages/llm/weights.bin"]["bytes"] for manifest in (whole.manifest, built.manifest)]
    assert sizes[0] - sizes[1] == pytest.approx(record["full_table_bytes"] - record["table_bytes"], abs=4096)
    assert any(note.startswith("vocabulary reduced to 60 of 97 tokens (frequency)") for note in built.manifest.notes)
    assert built.manifest.stages["llm"].contract.outputs[0].shape[-1] == 60
    assert "vocabulary reduced" in (built.path / "README.md").read_text()


def test_greedy_text_is_the_full_models_when_its_tokens_are_kept(merged_source: Path, tmp_path: Path) -> None:
    whole = LLM.load(deploy(merged_source, tmp_path / "w", recipe="float32", verify=False).path, threads=1)
    prompt = [5, 7, 50, 11]
    for sampling in (SamplingParams(), SamplingParams(repetition_penalty=1.3)):
        wanted = whole.generate(prompt, max_tokens=20, sampling=sampling, ignore_eos=True).all_tokens()
        keep = tmp_path / "keep.txt"
        keep.write_text("".join(f"{i}\n" for i in {*prompt, *wanted}))
        request = VocabularyRequest(72, keep=keep)
        folder = deploy(merged_source, tmp_path / "b", recipe="float32", verify=False, vocabulary=request, force=True)
        llm = LLM.load(folder.path, threads=1)
        assert llm.vocabulary is not None
        assert set(wanted) < set(llm.vocabulary.ids.tolist())
        given = llm.generate(prompt, max_tokens=20, sampling=sampling, ignore_eos=True)
        assert given.all_tokens() == wanted
        assert given.respelled == {}


def test_text_goes_in_and_comes_out_with_dropped_tokens(merged_source: Path, tmp_path: Path) -> None:
    folder = deploy(merged_source, tmp_path / "b", recipe="float32", verify=False, vocabulary=VocabularyRequest(40))
    llm = LLM.load(folder.path, threads=1)
    whole = LLM.load(deploy(merged_source, tmp_path / "w", recipe="float32", verify=False).path, threads=1)
    text = "the seaside reassess"
    ids = llm.tokenizer.encode(text)
    assert llm.tokenizer.decode(ids) == text
    dropped = [i for i in whole.tokenizer.encode(text) if llm.vocabulary is not None and i not in llm.vocabulary]
    assert dropped
    generation = llm.generate(text, max_tokens=9)
    assert generation.respelled == {i: dropped.count(i) for i in dropped}
    # The respelled prompt is what the whole model is given when it gets the same ids.
    assert generation.prompt_ids == ids
    np.testing.assert_allclose(
        llm.session().append(ids)[0], whole.session().append(ids)[0][llm.vocabulary.ids], rtol=0, atol=1e-5
    )
    assert llm.generate([{"role": "user", "content": "rest"}], max_tokens=3).prompt_ids
    with pytest.raises(GenerationError, match=rf"The token '\w+' \(id {dropped[0]}\) is not among the 40 of 97"):
        llm.generate([dropped[0]])
    with pytest.raises(GenerationError, match="is not among the 40 of 97"):
        llm.session().append([dropped[0]])
    with pytest.raises(GenerationError, match="97 is outside the vocabulary of 97"):
        llm.generate([97]).all_tokens()


def test_sessions_keep_their_vocabulary(merged_source: Path, tmp_path: Path) -> None:
    folder = deploy(merged_source, tmp_path / "b", recipe="float32", verify=False, vocabulary=VocabularyRequest(40))
    llm = LLM.load(folder.path, threads=1)
    assert llm.vocabulary is not None
    ids = llm.vocabulary.ids[[3, 30, 39, 8]]
    session = llm.session()
    wanted = session.append(ids, logits="all")
    twin = session.copy()
    twin.truncate(2)
    np.testing.assert_allclose(twin.append(ids[2:], logits="all"), wanted[2:], rtol=0, atol=1e-5)
    llm.save_prefix(tmp_path / "p", session, ids.tolist())
    other, restored = llm.load_prefix(tmp_path / "p")
    assert restored == ids.tolist()
    other.truncate(3)
    np.testing.assert_allclose(other.append(ids[3:]), wanted[3:], rtol=0, atol=1e-5)
    rows = llm.session(2).append_rows([ids, ids[:2]], logits="all")
    np.testing.assert_allclose(rows[0], wanted, rtol=0, atol=1e-5)


def test_the_request_is_part_of_the_key(merged_source: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("the rest")

    def built(size: int | float | None, **options: Any) -> bool:
        request = None if size is None else VocabularyRequest(size, **options)
        out = tmp_path / "b"
        return deploy(merged_source, out, recipe="int8", verify=False, vocabulary=request, force=True).reused

    texts = (tmp_path / "t.txt",)
    assert not built(None)
    assert built(None)
    assert not built(60)
    assert built(60)
    assert not built(61)
    assert not built(60, texts=texts)
    assert built(60, texts=texts)
    (tmp_path / "t.txt").write_text("another")
    assert not built(60, texts=texts)
    assert not built(60, inputs=texts)
    assert not built(0.7)


def test_exported_folders_are_compiled_with_their_vocabulary(merged_source: Path, tmp_path: Path) -> None:
    request = VocabularyRequest(60)
    export(merged_source, tmp_path / "e", recipe="int8", dialect="onnxruntime", vocabulary=request)
    compiled = compile_bundle(tmp_path / "e", tmp_path / "c")
    llm = LLM.load(compiled.path, threads=1)
    assert llm.vocabulary is not None
    assert len(llm.vocabulary) == 60
    assert verify_bundle(compiled.path, open_checkpoint(merged_source), threads=1).passed
    export(merged_source, tmp_path / "p", vocabulary=request)
    assert verify_bundle(tmp_path / "p", open_checkpoint(merged_source), threads=1).passed


# -- damage ------------------------------------------------------------------------------------------------------------

Change = Callable[[np.ndarray], np.ndarray]


def spoilt(merged_source: Path, folder: Path, change: Change) -> Path:
    """Make a bundle whose sidecar was changed and sealed again."""
    built = deploy(merged_source, folder, recipe="float32", verify=False, vocabulary=VocabularyRequest(60))
    llm = LLM.load(folder, threads=1)
    assert llm.vocabulary is not None
    (folder / "sidecars" / SIDECAR).write_bytes(sidecar_bytes(change(llm.vocabulary.ids)))
    _seal(folder, dataclasses.replace(built.manifest, files={}))
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ids: ids[::-1], "is not in ascending order"),
        (lambda ids: np.append(ids[:-1], ids[-2]), "twice"),
        (lambda ids: np.append(ids[:-1], 97), "has the id 97, outside 0 to 96"),
        (lambda ids: ids[:-1], "has 59 ids and its engine 60 logits"),
        (lambda ids: ids[:0], "is empty"),
    ],
)
def test_a_wrong_sidecar_is_refused_at_load(change: Change, words: str, merged_source: Path, tmp_path: Path) -> None:
    folder = spoilt(merged_source, tmp_path / "b", change)
    for use in (lambda: LLM.load(folder, threads=1), lambda: verify_bundle(folder, open_checkpoint(merged_source))):
        with pytest.raises(BundleError, match=words):
            use()


def test_a_missing_sidecar_is_refused_at_load(merged_source: Path, tmp_path: Path) -> None:
    folder = spoilt(merged_source, tmp_path / "b", lambda ids: ids)
    (folder / "sidecars" / SIDECAR).unlink()
    _seal(folder, dataclasses.replace(read_manifest(folder), files={}))
    with pytest.raises(BundleError, match=f"reduced and {SIDECAR} is missing"):
        LLM.load(folder)


def test_the_verifier_notices_ids_of_other_rows(merged_source: Path, tmp_path: Path) -> None:
    """An id in another's place: its row in the tables is not the one the checkpoint has."""

    def other(ids: np.ndarray) -> np.ndarray:
        dropped = np.setdiff1d(np.arange(97), ids)
        return np.sort(np.append(np.delete(ids, 40), dropped[3]))

    folder = spoilt(merged_source, tmp_path / "b", other)
    report = verify_bundle(folder, open_checkpoint(merged_source), threads=1)
    assert not report.passed
    assert "model.embed_tokens.weight" in report.reason()


def test_bundles_of_other_vocabularies_are_not_compared(merged_source: Path, tmp_path: Path) -> None:
    folders = []
    for number, size in enumerate((None, 60, 61)):
        request = None if size is None else VocabularyRequest(size)
        folders.append(tmp_path / str(number))
        deploy(merged_source, folders[-1], recipe="float32", verify=False, vocabulary=request)
    deploy(merged_source, tmp_path / "i", recipe="int8", verify=False, vocabulary=VocabularyRequest(60))
    assert verify(tmp_path / "i", folders[1], threads=1).passed
    for a, b, words in ((0, 1, "one has a reduced vocabulary"), (1, 2, "their reduced vocabularies differ")):
        with pytest.raises(BundleError, match=words):
            verify(folders[a], folders[b], threads=1)


def test_nothing_is_left_behind_by_a_refusal(merged_source: Path, tmp_path: Path) -> None:
    bad: list[VocabularyRequest] = [VocabularyRequest(3), VocabularyRequest(98)]
    for request in bad:
        with pytest.raises(UsageError):
            deploy(merged_source, tmp_path / "b", recipe="int8", vocabulary=request)
    bare = write_source(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    with pytest.raises(EdgewrightError, match=r"no tokenizer\.json"):
        deploy(bare, tmp_path / "b", recipe="int8", vocabulary=VocabularyRequest(60))
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]
