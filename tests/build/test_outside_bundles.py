"""Bundles with the embedding table outside: the same logits as with it inside, to the bit, and wrong tables found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from conftest import BOS, EOS, TEXT_GOLDENS, write_source
from edgewright.build.pipeline import _seal, compile_bundle, deploy, export
from edgewright.build.reduction import VocabularyRequest
from edgewright.bundle import read_manifest
from edgewright.checkpoint import open_checkpoint
from edgewright.cli import main
from edgewright.errors import BundleError, BundleTamperedError, GenerationError, ModelError, UsageError
from edgewright.runtime.embedding import SIDECAR, read_places
from edgewright.runtime.llm import LLM
from edgewright.runtime.session import Session
from edgewright.verify import verify_bundle
from edgewright.verify.against import verify

FP8 = "{body: {format: int4}, lm_head: {format: int8}, embedding: {format: fp8, group: row-block}}"
INT8 = "{body: {format: int8}, lm_head: {format: int8}, embedding: {format: int8}}"
#: Golden and recipe: an untied table, one with learned positions beside it, one with a factor, tied ones, two ropes.
PAIRS = {
    "llama": FP8,
    "gpt2": "float32",
    "gemma3": FP8,
    "qwen3": INT8,
    "phi3_longrope": "float32",
    "lfm2": "float16",
}


def recipe_of(text: str, folder: Path) -> str:
    if "{" not in text:
        return text
    path = folder / "recipe.yaml"
    path.write_text(text)
    return str(path)


def make(case: str, folder: Path, place: str, **options: Any) -> Path:
    recipe = recipe_of(PAIRS[case], folder)
    return deploy(TEXT_GOLDENS / case, folder / place, recipe=recipe, embeddings=place, **options).path


@pytest.fixture(scope="module", params=sorted(PAIRS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """A golden's name, its bundle with the table outside, verified, and that with it inside."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, make(request.param, folder, "outside"), make(request.param, folder, "inside", verify=False)


def ids_of(llm: LLM, count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, llm.session().vocab_size, count)]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def test_the_logits_are_the_same_bits(pair: tuple[str, Path, Path]) -> None:
    _, outside, inside = pair
    one, two = LLM.load(outside), LLM.load(inside)
    ids = ids_of(one, 40)
    mine, theirs = one.session(), two.session()
    for a, b in ((0, 20), (20, 21), (21, 22), (22, 33), (33, 40)):
        assert same(mine.append(ids[a:b], "all"), theirs.append(ids[a:b], "all")), (a, b)
    rows = [ids[:3], ids[3:10]]
    pairs = [llm.session(2).append_rows(rows, "all") for llm in (one, two)]
    assert all(same(a, b) for a, b in zip(*pairs, strict=True))
    assert one.manifest.verdict["status"] == "passed"
    assert one.manifest.model["parameters"] == two.manifest.model["parameters"]


def test_rows_are_as_good_as_ids(pair: tuple[str, Path, Path]) -> None:
    llm = LLM.load(pair[1])
    ids = ids_of(llm, 40, seed=1)
    by_ids, by_rows = llm.session(), llm.session()
    for a, b in ((0, 7), (7, 8), (8, 39), (39, 40)):
        assert same(by_ids.append(ids[a:b], "all"), by_rows.append_embeddings(llm.embed(ids[a:b]), "all")), (a, b)
    assert (by_ids.ids_only, by_rows.ids_only) == (True, False)
    # A session goes on with either, also after it was copied and cut back.
    twin = by_rows.copy()
    assert not twin.ids_only
    if not twin.recurrent:
        for session in (by_ids, twin):
            session.truncate(5)
    assert same(by_ids.append(ids[5:9], "all"), twin.append(ids[5:9], "all"))
    assert same(by_ids.append([ids[0]]), twin.append([ids[0]]))


def test_all_that_tells_where_the_table_is(pair: tuple[str, Path, Path]) -> None:
    case, outside, inside = pair
    manifest = read_manifest(outside)
    record = manifest.model["embedding"]
    assert record["file"] in manifest.files
    assert record["bytes"] < manifest.files[record["file"]]["bytes"]
    assert "embedding" not in read_manifest(inside).model
    assert manifest.stages["llm"].contract.inputs[0].shape == ("batch", "seq", record["hidden"])
    assert record["multiplier"] == (float(np.float32(record["hidden"] ** 0.5)) if case == "gemma3" else None)
    tied = any("each have a copy" in note for note in manifest.notes)
    assert tied == (case in ("gpt2", "qwen3", "lfm2"))
    weights = [sum(f.stat().st_size for f in p.glob("stages/llm/weights.bin")) for p in (outside, inside)]
    assert (weights[0] < weights[1]) == (not tied)
    assert LLM.load(outside).model_id != LLM.load(inside).model_id


def test_bundles_are_compared_wherever_the_table_is(pair: tuple[str, Path, Path]) -> None:
    _, outside, inside = pair
    for one, two in ((outside, inside), (inside, outside), (outside, outside)):
        report = verify(one, two)
        assert report.passed
        assert report.levels["bundles"].to_json()["pooled"]["max_error"] == 0


# -- wrong tables ------------------------------------------------------------------------------------------------------


def damage(bundle: Path, folder: Path, change: Callable[[str, np.ndarray], None]) -> Path:
    """Return a copy with other bytes in its table, sealed as if they were right; arrays are uint8 `[rows, bytes]`."""
    copy = folder / "damaged"
    shutil.copytree(bundle, copy)
    path = copy / "sidecars" / SIDECAR
    places, raw = read_places(path), bytearray(path.read_bytes())
    for name, (_, shape, start, length) in places.items():
        change(name, np.frombuffer(raw, np.uint8, length, start).reshape(shape[0], -1))
    path.write_bytes(raw)
    manifest = read_manifest(copy)
    _seal(copy, replace(manifest, files={k: v for k, v in manifest.files.items() if not k.endswith(SIDECAR)}))
    return copy


def shift_rows(name: str, part: np.ndarray) -> None:
    if name == "embedding":
        part[5:8] = np.roll(part[5:8], 1, axis=0)


def swap_scales(name: str, part: np.ndarray) -> None:
    if name == "embedding_scale":
        part[[3, 4]] = part[[4, 3]]


def one_bit(name: str, part: np.ndarray) -> None:
    if name == "embedding":
        part[-1, -1] ^= 1


@pytest.mark.parametrize(
    ("change", "row"),
    [(shift_rows, "row 5"), (swap_scales, "row 3"), (one_bit, "row ")],
    ids=["rows shifted", "scales swapped", "one bit"],
)
def test_a_wrong_table_is_found_and_named(
    pair: tuple[str, Path, Path], change: Callable[[str, np.ndarray], None], row: str, tmp_path: Path
) -> None:
    case, outside, inside = pair
    if change is swap_scales and "format" not in PAIRS[case]:
        pytest.skip("a float table has no scales")
    bad = damage(outside, tmp_path, change)
    report = verify_bundle(bad, open_checkpoint(TEXT_GOLDENS / case))
    weights = report.levels["weights"].faults
    assert len(weights) == 1
    assert weights[0].startswith(f"sidecars/{SIDECAR} ")
    assert row in weights[0]
    place = report.localisation
    assert place is not None
    assert (place.place.split("/")[0], place.cause.kind) == ("embed_tokens", "weight bytes")
    assert f"in sidecars/{SIDECAR}" in place.cause.words
    if change is shift_rows and "fp8" not in PAIRS[case]:  # int4 bodies leave room for the wrong rows of a few ids
        for other in (inside, outside):
            against = verify(bad, other)
            assert not against.passed
            assert against.localisation is not None
            assert against.localisation.place.split("/")[0] == "embed_tokens"
            assert against.localisation.origin == SIDECAR


def test_tables_that_cannot_be_used(tmp_path: Path) -> None:
    bundle = make("llama", tmp_path, "outside", verify=False)
    path = bundle / "sidecars" / SIDECAR
    whole, manifest = path.read_bytes(), read_manifest(bundle)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(BundleTamperedError, match=SIDECAR):
        LLM.load(bundle)
    path.write_bytes(whole[:-1])
    with pytest.raises(BundleError, match="damaged"):
        LLM.load(bundle, check=False)
    path.unlink()
    with pytest.raises(BundleError, match=SIDECAR):
        LLM.load(bundle)
    path.write_bytes(whole)
    files = {k: v for k, v in manifest.files.items() if not k.endswith(SIDECAR)}
    for changed, words in (
        (replace(manifest, model={k: v for k, v in manifest.model.items() if k != "embedding"}), "differ over where"),
        (replace(manifest, model={**manifest.model, "embedding": 3}), "differ over where"),
    ):
        _seal(bundle, changed)
        with pytest.raises(BundleError, match=words):
            LLM.load(bundle)
    _seal(bundle, manifest)
    path.rename(bundle / "away")
    _seal(bundle, replace(manifest, files=files))
    with pytest.raises(BundleError, match="missing"):
        LLM.load(bundle, check=False)


def test_a_table_of_other_sizes_than_the_engine(tmp_path: Path) -> None:
    bundle, other = tmp_path / "llama", tmp_path / "gpt2"
    for path in (bundle, other):
        deploy(TEXT_GOLDENS / path.name, path, recipe="float32", embeddings="outside", verify=False)
    shutil.copy(other / "sidecars" / SIDECAR, bundle / "sidecars" / SIDECAR)
    manifest = read_manifest(bundle)
    model = {**manifest.model, "embedding": read_manifest(other).model["embedding"]}
    _seal(
        bundle,
        replace(manifest, model=model, files={k: v for k, v in manifest.files.items() if not k.endswith(SIDECAR)}),
    )
    with pytest.raises(BundleError, match=r"has 61 rows of 40 where .* 97 logits"):
        LLM.load(bundle)


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_rows_are_refused_where_they_do_not_fit(tmp_path: Path) -> None:
    outside, inside = (LLM.load(make("llama", tmp_path, place, verify=False)) for place in ("outside", "inside"))
    for call in (lambda: inside.session().append_embeddings(np.ones((2, 40))), lambda: inside.embed([1])):
        with pytest.raises(GenerationError, match="--embeddings outside"):
            call()
    session = outside.session()
    with pytest.raises(GenerationError, match="rows of 40 numbers"):
        session.append_embeddings(np.ones((2, 39)))
    with pytest.raises(GenerationError, match="logits must be"):
        session.append_embeddings(np.ones((2, 40)), "first")  # type: ignore[arg-type]
    with pytest.raises(GenerationError, match="don't fit into the context"):
        session.append_embeddings(np.ones((session.max_context + 1, 40)))
    with pytest.raises(GenerationError, match="beyond the embedding table of 97 rows"):
        outside.embed([97])
    assert (session.length, session.ids_only) == (0, True)
    assert outside.embed([]).shape == (0, 40)
    alone = Session(outside._engine)  # an engine without its table takes rows only
    with pytest.raises(GenerationError, match="there is no table"):
        alone.append([1])
    assert same(alone.append_embeddings(outside.embed([1])), outside.session().append([1]))


def test_a_prefix_of_rows_cannot_be_saved(tmp_path: Path) -> None:
    llm = LLM.load(make("llama", tmp_path, "outside", verify=False))
    ids = ids_of(llm, 9)
    session = llm.session()
    session.append(ids[:6])
    session.append_embeddings(llm.embed(ids[6:]))
    with pytest.raises(GenerationError, match="rows of embeddings"):
        llm.save_prefix(tmp_path / "p.npz", session, ids)
    session.truncate(6)  # what was fed as rows is gone
    llm.save_prefix(tmp_path / "p.npz", session, ids[:6])
    restored, held = llm.load_prefix(tmp_path / "p.npz")
    assert held == ids[:6]
    assert same(restored.append(ids[6:]), session.append(ids[6:]))


@pytest.mark.parametrize("rows", [False, True])
def test_two_ropes_feed_the_history_again(rows: bool, tmp_path: Path) -> None:
    llm = LLM.load(make("phi3_longrope", tmp_path, "outside", verify=False))
    plain = LLM.load(make("phi3_longrope", tmp_path, "inside", verify=False))
    switch = llm.manifest.stages["llm"].contract.rope_switch
    assert switch is not None
    ids = ids_of(llm, switch + 9)
    session, wanted = llm.session(), plain.session()
    start = switch - 3
    if rows:  # rows in the middle of ids
        session.append(ids[:4])
        session.append_embeddings(llm.embed(ids[4:10]))
        session.append(ids[10:start])
    else:
        session.append(ids[:start])
    wanted.append(ids[:start])
    for a, b in ((start, switch), (switch, switch + 1), (switch + 1, switch + 9)):
        assert np.allclose(session.append(ids[a:b], "all"), wanted.append(ids[a:b], "all"), rtol=0, atol=1e-5)
    assert session.ids_only != rows
    twin = session.copy()
    for one in (twin, wanted):
        one.truncate(7)
    assert np.allclose(twin.append(ids[7:12]), wanted.append(ids[7:12]), rtol=0, atol=1e-5)
    twin.truncate(4)
    assert twin.ids_only


# -- together with the rest --------------------------------------------------------------------------------------------


def merged_source(folder: Path) -> Path:
    """A golden whose tokenizer has merges, so that tokens can be left out."""
    letters = [chr(code) for code in range(97, 123)] + ["\u0120", "[", "]"]
    pairs = [(a, b) for a in "etaoinsh" for b in "etaoinsr"][: 95 - len(letters)]
    vocab = {piece: i for i, piece in enumerate([*letters, *(a + b for a, b in pairs)])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab | {"<bos>": BOS, "<eos>": EOS}, pairs))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<eos>"])
    write_source(folder)
    (folder / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    return folder


def test_a_reduced_vocabulary_has_a_smaller_table(tmp_path: Path) -> None:
    source = merged_source(tmp_path / "source")
    request = VocabularyRequest(60)
    built = {
        place: deploy(source, tmp_path / place, recipe="int8", vocabulary=request, embeddings=place)
        for place in ("outside", "inside")
    }
    one, two = (LLM.load(b.path) for b in built.values())
    assert one.vocabulary is not None
    assert one.manifest.model["embedding"]["vocab"] == len(one.vocabulary)
    assert built["outside"].manifest.verdict["status"] == "passed"
    ids = [int(i) for i in np.random.default_rng(4).choice(one.vocabulary.ids, 20)]
    assert same(one.session().append(ids, "all"), two.session().append(ids, "all"))
    assert same(one.session().append_embeddings(one.embed(ids), "all"), two.session().append(ids, "all"))
    dropped = next(i for i in range(one.vocabulary.full_size) if i not in one.vocabulary)
    with pytest.raises(GenerationError, match=f"id {dropped}"):
        one.embed([dropped])


def test_an_exported_folder_is_compiled(tmp_path: Path) -> None:
    recipe = recipe_of(FP8, tmp_path)
    folders = [
        export(TEXT_GOLDENS / "gemma3", tmp_path / d, recipe=recipe, dialect=d, embeddings="outside").path
        for d in ("portable", "onnxruntime")
    ]
    bundle = compile_bundle(folders[1], tmp_path / "bundle").path
    ids = ids_of(LLM.load(bundle), 12)
    plain = deploy(TEXT_GOLDENS / "gemma3", tmp_path / "inside", recipe=recipe, verify=False).path
    wanted = LLM.load(plain).session().append(ids, "all")
    assert same(LLM.load(bundle).session().append(ids, "all"), wanted)
    portable = export(TEXT_GOLDENS / "gemma3", tmp_path / "plain", recipe=recipe).path
    logits = [LLM.load(folder).session().append(ids, "all") for folder in (folders[0], portable)]
    assert same(*logits)
    assert verify_bundle(folders[0], open_checkpoint(TEXT_GOLDENS / "gemma3")).passed


def test_refusals_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="embed_tokens_per_layer"):
        deploy(TEXT_GOLDENS / "gemma4_text", tmp_path / "b", recipe="float32", embeddings="outside")
    for verb in (deploy, export):
        with pytest.raises(UsageError, match="'beside'"):
            verb(TEXT_GOLDENS / "llama", tmp_path / "b", embeddings="beside")
    assert not (tmp_path / "b").exists()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_source(tmp_path / "source")
    bundle = tmp_path / "b"
    deployed = ["deploy", str(source), "-o", str(bundle), "--recipe", "int8", "--no-verify", "--json"]
    assert main([*deployed, "--embeddings", "outside"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["model"]["embedding"]["file"] == f"sidecars/{SIDECAR}"
    assert main([*deployed, "--embeddings", "outside"]) == 0
    assert json.loads(capsys.readouterr().out)["reused"]
    assert main([*deployed, "--force"]) == 0  # the place is part of the key
    again = json.loads(capsys.readouterr().out)
    assert not again["reused"]
    assert "embedding" not in again["model"]
    assert main(["run", str(bundle), "--prompt", "ab", "--max-tokens", "3"]) == 0
    inside = capsys.readouterr().out
    assert main([*deployed[:-1], "--force", "--embeddings", "outside"]) == 0
    assert f"table     sidecars/{SIDECAR}" in capsys.readouterr().out
    assert main(["run", str(bundle), "--prompt", "ab", "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out == inside
    assert main(["verify", str(bundle), "--against", str(source)]) == 0
    assert main([*deployed, "--embeddings", "beside"]) == 2
