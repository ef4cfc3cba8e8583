from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from edgewright.build.quality import compare_quality
from edgewright.calibration.documents import windows
from edgewright.calibration.model import text_side
from edgewright.checkpoint import open_checkpoint
from edgewright.runtime.llm import LLM

from .conftest import Cli
from .tiny import GOLDENS, llama_folder, the_sentence

FEW = ("--windows", 3, "--length", 30)


@pytest.fixture(scope="module")
def trained() -> Path:
    return GOLDENS / "trained"


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles and quantized checkpoints of `trained`; not to be changed."""
    from edgewright.build.pipeline import deploy
    from edgewright.build.quantized import quantize_checkpoint

    folder = tmp_path_factory.mktemp("quality")
    for recipe in ("float32", "int8", "int4"):
        deploy(trained, folder / f"b-{recipe}", recipe=recipe, verify=False)
    for recipe in ("int4", "mxfp4", "float32"):
        quantize_checkpoint(trained, folder / f"q-{recipe}", recipe=recipe)
    return {path.name: path for path in folder.iterdir()}


def test_the_float_bundle_is_the_float_model_and_fewer_bits_are_further(
    cli: Cli, trained: Path, made: dict[str, Path]
) -> None:
    names = ["b-float32", "b-int8", "b-int4", "q-int4", "q-mxfp4", "q-float32"]
    result = cli("quality", *(made[name] for name in names), "--against", trained, *FEW, "--json", "--quiet")
    assert result.code == 0, result.err
    data = json.loads(result.out)
    found = {one["name"]: one["judgement"] for one in data["candidates"]}
    assert list(found) == names
    for exact in ("b-float32", "q-float32"):
        assert abs(found[exact]["kl"]) < 1e-6
        assert found[exact]["top1"] == 1.0
        assert found[exact]["perplexity"] == pytest.approx(data["reference"]["perplexity"], rel=1e-4)
    assert found["b-float32"]["kl"] < found["b-int8"]["kl"] < found["b-int4"]["kl"] < found["q-mxfp4"]["kl"] < 1
    assert found["q-int4"]["kl"] == pytest.approx(found["b-int4"]["kl"], rel=0.5)
    assert 20 < data["reference"]["perplexity"] < 200
    kinds = {one["name"]: one["kind"] for one in data["candidates"]}
    assert {kinds[name] for name in names if name[0] == "b"} == {"bundle"}
    assert {kinds[name] for name in names if name[0] == "q"} == {"checkpoint"}
    for one in data["candidates"]:
        if one["kind"] == "bundle":
            assert one["bytes"] == (made[one["name"]] / "stages/llm/weights.bin").stat().st_size
    assert data["text"]["sources"][0]["name"] == "heldout.txt"
    assert (data["text"]["windows"], data["text"]["positions"]) == (3, 90)


def test_figures_are_those_of_the_logits(trained: Path, made: dict[str, Path]) -> None:
    found = compare_quality([made["b-int4"]], trained, count=2, length=40, seed=7)
    checkpoint = open_checkpoint(trained)
    tokenizer = text_side(checkpoint).tokenizer
    assert tokenizer is not None
    text = (resources.files("edgewright.calibration") / "texts" / "heldout.txt").read_text(encoding="utf-8")
    rows, _ = windows([text], tokenizer, length=40, seed=7, notes=[])
    kl, losses = [], []
    exact, coarse = LLM.load(made["b-float32"]), LLM.load(made["b-int4"])
    for ids in rows[:2]:
        logits = [llm.session().append(ids, logits="all").astype(np.float64) for llm in (exact, coarse)]
        p, q = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in logits)
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        losses.append(-q[np.arange(39), ids[1:]])
    judgement = found.candidates[0].judgement
    assert judgement.kl == pytest.approx(np.concatenate(kl).mean(), rel=1e-3)
    assert judgement.perplexity == pytest.approx(np.exp(np.concatenate(losses).mean()), rel=1e-4)
    spread = np.array([part.mean() for part in kl]).std(ddof=1) / np.sqrt(2)
    assert judgement.kl_windows_error == pytest.approx(spread, rel=1e-3)


def test_activations_and_cache_are_rounded_as_the_checkpoint_says(cli: Cli, trained: Path, tmp_path: Path) -> None:
    plain, rounded = tmp_path / "plain.yaml", tmp_path / "rounded.yaml"
    sections = "body: {format: float32}\nlm_head: {format: float32}\nembedding: {format: float32}\n"
    body = "body: {format: int8, group: channel}\n" + sections.split("\n", 1)[1]
    plain.write_text(body)
    rounded.write_text(body + "activations: {format: int8, mode: dynamic}\nkv: {format: int8, scope: tensor}\n")
    for name, data in (("plain", ()), ("rounded", ("--sequences", 2, "--length", 32))):
        result = cli("quantize", trained, "-o", tmp_path / name, "--recipe", tmp_path / f"{name}.yaml", *data)
        assert result.code == 0, result.err
    result = cli("quality", tmp_path / "plain", tmp_path / "rounded", "--against", trained, *FEW, "--json")
    one, other = (candidate["judgement"] for candidate in json.loads(result.out)["candidates"])
    assert 0 < one["kl"] < other["kl"] / 2


def test_the_table_the_page_and_the_notes(cli: Cli, trained: Path, made: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Line {n} of a text, {n * n} words long.\n" for n in range(20)), encoding="utf-8")
    result = cli(
        "quality", made["q-int4"], "--against", trained, "--text", text, "--length", 40, "--page", page, "--seed", 2
    )
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("text.txt: ")
    assert lines[0].endswith(" seed 2")
    assert [line.split()[0] for line in lines[1:4]] == ["model", "float", "q-int4"]
    assert "16 windows were wanted and the text has" in result.err
    html = page.read_text(encoding="utf-8")
    assert "Before and after, on held-out text" in html
    assert "model.layers.0.mlp.up_proj" in html
    cli("quality", made["q-int4"], made["b-int4"], "--against", trained, *FEW, "--page", page)
    assert "model.layers.0.mlp.up_proj" not in page.read_text(encoding="utf-8")


def test_a_window_is_no_longer_than_the_context(cli: Cli, trained: Path, made: dict[str, Path], tmp_path: Path) -> None:
    short = tmp_path / "short"
    assert cli("deploy", trained, "-o", short, "--recipe", "int8", "--no-verify", "--max-context", 16).code == 0
    result = cli("quality", made["b-int4"], short, "--against", trained, "--windows", 2)
    assert result.code == 0, result.err
    assert "windows have 16 tokens, because that is all the context holds" in result.err


def test_errors_are_one_sentence(
    cli: Cli, trained: Path, talker: Path, llama: Path, made: dict[str, Path], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"

    def refused(code: int, *arguments: object) -> str:
        result = cli("quality", *arguments)
        assert result.code == code, result.err
        assert result.out == ""
        return the_sentence(result.err)

    bundle = made["b-int4"]
    for content in ("", "  \n", "Too short."):
        text.write_text(content)
        sentence = refused(3, bundle, "--against", trained, "--text", text)
        assert "a window takes 256" in sentence
    assert "can't be read" in refused(3, bundle, "--against", trained, "--text", tmp_path / "no.txt")
    text.write_bytes(b"\xff\xfe\x00")
    refused(3, bundle, "--against", trained, "--text", text)
    assert "is a bundle" in refused(2, bundle, "--against", bundle)
    assert "400 tokens and trained has 1024" in refused(2, talker, "--against", trained)
    other = llama_folder(tmp_path / "other", "bpe_chatml", vocab=1024)
    assert "another tokenizer than trained" in refused(2, other, "--against", trained)
    assert "has no tokenizer" in refused(3, llama, "--against", llama)
    refused(3, tmp_path / "nothing", "--against", trained)
    assert cli("quality", bundle, "--against", trained, "--windows", 0).code == 2
    assert cli("quality", bundle).code == 2


def test_a_reduced_vocabulary_is_refused(cli: Cli, talker: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "reduced"
    result = cli("deploy", talker, "-o", bundle, "--recipe", "int8", "--no-verify", "--vocab-size", 300)
    assert result.code == 0, result.err
    result = cli("quality", bundle, "--against", talker, *FEW)
    assert result.code == 3
    the_sentence(result.err, "reduced vocabulary")
