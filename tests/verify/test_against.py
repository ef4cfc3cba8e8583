"""What a bundle can be compared with: goldens of the right schema, other bundles of the same model; and the page."""

from __future__ import annotations

import dataclasses
import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import TEXT_GOLDENS, write_source
from edgewright.build.pipeline import _seal, deploy, export
from edgewright.bundle import read_manifest
from edgewright.errors import BundleError, GoldenError, UsageError
from edgewright.verify import verify
from edgewright.verify.against import kind_of
from edgewright.verify.page import chart, page
from html_pages import Reader

CASE = TEXT_GOLDENS / "mistral_window"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle of the golden."""
    return deploy(CASE, tmp_path_factory.mktemp("b") / "bundle", recipe="float32", verify=False).path


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the same golden whose last layer sees one position too many."""
    from edgewright.build import llm
    from edgewright.graph import Stage

    def built(*args: Any, **kwargs: Any) -> Stage:
        stage = build(*args, **kwargs)
        node = [n for n in stage.graph if n.op_type == "Attention"][-1]
        node.attributes["window"] = dataclasses_window(node.attributes["window"].value + 1)
        return stage

    build = llm.build_llm
    folder = tmp_path_factory.mktemp("w")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm, "build_llm", built)
        return deploy(CASE, folder / "wrong", recipe="float32", verify=False).path


def dataclasses_window(value: int) -> Any:
    import onnx_ir as ir

    return ir.convenience.convert_attributes({"window": value})[0]


def golden_copy(folder: Path, *, checkpoint: bool = False) -> Path:
    folder.mkdir()
    for path in CASE.iterdir():
        if checkpoint or path.name in ("case.json", "expected.npz"):
            shutil.copy(path, folder)
    return folder


def test_kinds(bundle: Path, tmp_path: Path) -> None:
    assert kind_of(bundle) == "bundle"
    assert kind_of(CASE) == "golden"
    assert kind_of(tmp_path) == "checkpoint"
    assert kind_of(write_source(tmp_path / "s")) == "checkpoint"


def test_a_golden_with_its_checkpoint_gives_all_levels(bundle: Path) -> None:
    report = verify(bundle, CASE, threads=1)
    assert report.passed, report.reason()
    data = report.to_json()
    assert list(data["levels"]) == ["weights", "ops", "quality", "golden"]
    assert set(data["levels"]["golden"]["scenarios"]) == {"prefill", "decode", "batch"}
    assert data["against"] == {"kind": "golden", "name": "mistral_window"}
    assert "localisation" not in data


def test_a_golden_alone_gives_one_level(bundle: Path, wrong: Path, tmp_path: Path) -> None:
    alone = golden_copy(tmp_path / "golden")
    report = verify(bundle, alone, threads=1)
    assert report.passed
    assert list(report.levels) == ["golden"]
    report = verify(wrong, alone, threads=1)
    assert not report.passed
    assert report.localisation is None
    assert report.reason().startswith("golden: ")


def test_where_when_and_why(wrong: Path) -> None:
    report = verify(wrong, CASE, threads=1)
    place = report.to_json()["localisation"]
    assert place["where"]["place"] == "layer 2 self_attn"
    assert place["where"]["layer"] == 2
    assert place["where"]["op"] == "Attention"
    assert place["where"]["file"] == "model.onnx"
    assert place["when"]["words"] == "from position 8, in prefill"
    assert place["cause"]["class"] == "window"
    assert place["cause"]["words"] == "window 9 instead of 8"
    assert place["cause"]["error_left"] < place["bound"] < place["error"]
    assert report.localisation is not None
    assert report.localisation.sentence in report.reason()
    json.dumps(report.to_json(), allow_nan=False)


# -- goldens of another schema -----------------------------------------------------------------------------------------


def arrays(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    with np.load(folder / "expected.npz") as data:
        held = dict(data)
    change(held)
    np.savez(folder / "expected.npz", **held)


def replaced(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, np.ndarray]], None]:
    def edit(held: dict[str, np.ndarray]) -> None:
        held[name] = change(held[name])

    return edit


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda held: held.pop("logits"), "lacks the arrays logits"),
        (lambda held: [held.pop(name) for name in ("ids", "logits")], "lacks the arrays ids, logits"),
        (lambda held: held.update(hidden=np.zeros(3)), "holds the arrays hidden"),
        (replaced("ids", lambda a: a.astype(np.int32)), "has ids as int32 of rank 2 where int64 of rank 2"),
        (replaced("logits", lambda a: a[None]), "has logits as float32 of rank 3 where float32 of rank 2"),
        (replaced("ids", lambda a: a[:, :5]), "has ids of shape [1, 5] for logits of 64 positions"),
        (replaced("decode_logits", lambda a: a[:, :7]), "has decode_logits of shape"),
        (lambda held: held.pop("logits_b"), "has only one of ids_b and logits_b"),
        (replaced("ids", lambda a: a + 1000), "has token ids outside its vocabulary"),
        (replaced("logits", lambda a: a * np.float32(np.nan)), "holds values that are not finite"),
    ],
)
def test_goldens_of_another_schema_are_refused(change: Any, words: str, bundle: Path, tmp_path: Path) -> None:
    folder = golden_copy(tmp_path / "golden")
    arrays(folder, change)
    with pytest.raises(GoldenError) as error:
        verify(bundle, folder, threads=1)
    assert words in str(error.value)


def test_case_files_of_another_schema_are_refused(bundle: Path, tmp_path: Path) -> None:
    folder = golden_copy(tmp_path / "golden")
    (folder / "case.json").write_text('{"schema": 7}')
    with pytest.raises(GoldenError, match="has the schema 7 and this version reads 1"):
        verify(bundle, folder, threads=1)
    (folder / "case.json").write_text("{")
    with pytest.raises(GoldenError, match="not JSON"):
        verify(bundle, folder, threads=1)
    (folder / "case.json").unlink()
    with pytest.raises(GoldenError, match=r"has no case\.json"):
        verify(bundle, folder, threads=1)
    (folder / "case.json").write_text("{}")
    (folder / "expected.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(GoldenError, match="can't be read"):
        verify(bundle, folder, threads=1)


def test_a_golden_of_another_model_is_refused(bundle: Path) -> None:
    with pytest.raises(GoldenError, match="a vocabulary of 103 tokens and the bundle of 101"):
        verify(bundle, TEXT_GOLDENS / "qwen2", threads=1)


# -- two bundles -------------------------------------------------------------------------------------------------------


def test_two_bundles_of_one_model_agree(bundle: Path, tmp_path: Path) -> None:
    other = export(CASE, tmp_path / "graph", recipe="float32", dialect="portable").path
    report = verify(bundle, other, threads=1)
    assert report.passed, report.reason()
    assert list(report.levels) == ["bundles"]
    coarse = deploy(CASE, tmp_path / "int4", recipe="int4", verify=False).path
    report = verify(coarse, bundle, threads=1)
    assert report.passed, report.reason()
    assert report.to_json()["levels"]["bundles"]["threshold"]["kl"] == 1.0  # the one of the coarser format


def test_two_bundles_that_disagree(bundle: Path, wrong: Path) -> None:
    report = verify(wrong, bundle, threads=1)
    assert not report.passed
    assert report.localisation is not None
    assert report.localisation.layer == 2
    assert report.localisation.positions[0] == 8
    assert report.localisation.cause.kind == "window"


def test_bundles_with_other_tokenizers_or_contracts_are_refused(bundle: Path, tmp_path: Path) -> None:
    source = write_source(tmp_path / "s")
    one = deploy(source, tmp_path / "one", recipe="float32", verify=False).path
    with pytest.raises(BundleError, match="one has a tokenizer and the other has none"):
        verify(one, bundle, threads=1)
    other = Path(shutil.copytree(one, tmp_path / "other"))
    path = other / "sidecars" / "tokenizer.json"
    path.write_text(path.read_text() + " ")
    _seal(other, dataclasses.replace(read_manifest(other), files={}))
    with pytest.raises(BundleError, match=r"their tokenizers differ \(sidecars/tokenizer\.json\)"):
        verify(one, other, threads=1)
    small = deploy(source, tmp_path / "small", recipe="float32", verify=False, max_context=64).path
    with pytest.raises(BundleError, match=r"their contracts differ in bounds: .* 256 and 64"):
        verify(one, small, threads=1)


def test_a_live_comparison_needs_a_checkpoint(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a checkpoint"):
        verify(bundle, bundle, live="python", threads=1)
    with pytest.raises(UsageError, match="holds no checkpoint"):
        verify(bundle, golden_copy(tmp_path / "golden"), live="python", threads=1)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_says_it_all_and_loads_nothing(wrong: Path) -> None:
    report = verify(wrong, CASE, threads=1)
    html = page("a <b> & c", read_manifest(wrong), report.to_json())
    reader = Reader()
    reader.feed(html)
    assert reader.loads == []
    assert reader.open == []
    text = " ".join(" ".join(reader.text).split())
    for part in (
        "a <b> & c",
        "layer 2 self_attn",
        "from position 8, in prefill",
        "window 9 instead of 8",
        "against the golden mistral_window",
        "quality: logits by scenario",
        "golden",
    ):
        assert part in text
    svgs = [html[a : html.index("</svg>", a) + 6] for a in range(len(html)) if html.startswith("<svg", a)]
    assert len(svgs) == 2
    for svg in svgs:
        ET.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))


def test_the_page_of_a_good_bundle(bundle: Path) -> None:
    report = verify(bundle, CASE, threads=1)
    html = page("good", read_manifest(bundle), report.to_json())
    assert "Where, when, why" not in html
    assert "<svg" not in html
    assert "passed" in html


def test_charts() -> None:
    assert chart([], 1.0) is None
    assert chart([[0, 0.0]], 1.0) is None
    drawn = chart([[4, 1e-7], [5, None], [6, 0.5]], 1e-4)
    assert drawn is not None
    assert [bar["bad"] for bar in drawn["bars"]] == [False, True, True]
    assert drawn["bars"][1]["y"] < drawn["bars"][2]["y"] < drawn["bound"] < drawn["bars"][0]["y"]
    assert all(0 <= bar["x"] <= drawn["width"] and bar["height"] > 0 for bar in drawn["bars"])
