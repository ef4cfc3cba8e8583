"""Builds that make a quantized checkpoint first: kept whole or made again, keyed by all they depend on."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import write_source
from edgewright.build import kept, quantized
from edgewright.build.card import recipe_line
from edgewright.build.kept import check_cache, held, is_whole, kept_folder, seal, sweep
from edgewright.build.key import build_key, checked_recipe, source_record, stage_recipe
from edgewright.build.pipeline import deploy, export
from edgewright.build.quantized import quantize_checkpoint
from edgewright.bundle import read_manifest
from edgewright.checkpoint import open_checkpoint
from edgewright.errors import BundleError, OutputError, RecipeError, UsageError
from edgewright.files import quantized_home
from edgewright.progress import SILENT
from edgewright.quant.recipe import Recipe
from edgewright.quant.recipe_file import parse_recipe
from edgewright.quantizer.preview import preview
from edgewright.quantizer.report import REPORT
from edgewright.verify import verify_bundle
from gguf_files import gguf_checkpoint
from quantizer_cases import Watch

MSE = """
body: {format: int4, group: 32, algorithm: mse}
lm_head: {format: float32}
embedding: {format: float32}
"""
PLAIN = "body: {format: int8}\nlm_head: {format: int8}\nembedding: {format: int8}\n"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def recipe_of(text: str = MSE) -> Recipe:
    return parse_recipe(text, "r.yaml")


def built(source: Path, output: Path, text: str = MSE, **options: Any) -> Any:
    return deploy(source, output, recipe=recipe_of(text), verify=False, **options)


def kept_of(source: Path, text: str = MSE) -> Path:
    return kept_folder(source_record(open_checkpoint(source)), stage_recipe(recipe_of(text)))


def test_the_source_is_never_replaced(tmp_path: Path) -> None:
    source = write_source(tmp_path / "outer" / "model")
    (source / REPORT).write_text("{}")  # even where it looks like one of ours
    (tmp_path / "outer" / REPORT).write_text("{}")
    for output in (source, source.parent):
        with pytest.raises(OutputError, match="holds the checkpoint, so it is not replaced"):
            quantize_checkpoint(source, output, recipe=recipe_of(PLAIN), force=True)
        assert (source / "model.safetensors").is_file()


def test_force_replaces_only_what_quantize_wrote(source: Path, tmp_path: Path) -> None:
    other = write_source(tmp_path / "another-model")
    with pytest.raises(OutputError, match="another-model exists and is no quantized checkpoint"):
        quantize_checkpoint(source, other, recipe=recipe_of(PLAIN), force=True)
    assert (other / "model.safetensors").is_file()
    out = tmp_path / "out"
    for layout in ("edgewright", "compressed-tensors"):
        recipe = recipe_of(
            "body: {format: int8, group: channel}\nlm_head: {format: float32}\nembedding: {format: float32}\n"
        )
        quantize_checkpoint(source, out, recipe=recipe, layout=layout, force=True)
        assert (out / REPORT).is_file()


def test_what_stands_below_stages_is_built_and_keyed(source: Path, tmp_path: Path) -> None:
    def staged(group: int) -> str:
        return PLAIN + f"stages:\n  llm: {{body: {{format: int8, group: {group}}}}}\n"

    first = built(source, tmp_path / "b", staged(64))
    assert first.manifest.recipe["summary"]["formats"] == {"int8 group 64": 14, "int8 group 32": 2}
    assert built(source, tmp_path / "b", staged(64)).reused
    with pytest.raises(OutputError, match="exists already"):
        built(source, tmp_path / "b", staged(32))
    calibrated = PLAIN + "stages:\n  llm: {body: {format: int4, algorithm: mse}}\n"
    made = export(source, tmp_path / "e", recipe=recipe_of(calibrated)).manifest
    assert made.recipe["summary"]["formats"] == {"int4 group 32": 14, "int8 group 32": 2}
    assert "origin" in made.source
    with pytest.raises(RecipeError, match="no stage 'vision'"):
        built(source, tmp_path / "v", PLAIN + "stages:\n  vision: {body: {format: int8}}\n")
    assert not (tmp_path / "v").exists()


def test_stages_that_are_resolved_leave_nothing_to_resolve_again() -> None:
    once = stage_recipe(recipe_of(PLAIN + "stages:\n  llm: {body: {format: int4}}\n"))
    assert stage_recipe(once) == once
    assert not once.stages
    assert once.to_json()["body"]["bits"] == 4


def test_the_data_are_part_of_the_key(source: Path, tmp_path: Path) -> None:
    data = tmp_path / "texts"
    data.mkdir()
    (data / "a.txt").write_text("one")
    text = MSE.replace("mse", "gptq") + f"calibration: {{data: '{data}'}}\n"
    record = source_record(open_checkpoint(source))

    def keys() -> tuple[str, Path]:
        return build_key(record, recipe_of(text)), kept_folder(record, recipe_of(text))

    first = keys()
    (data / "a.txt").write_text("one")  # the same again
    assert keys() == first
    (data / "a.txt").write_text("two")
    second = keys()
    assert second[0] != first[0]
    assert second[1] != first[1]
    (data / "b.txt").write_text("more")
    assert len({*first, *second, *keys()}) == 6


def test_inverted_codes_of_a_kept_checkpoint_are_noticed_and_made_again(source: Path, tmp_path: Path) -> None:
    first = built(source, tmp_path / "one")
    folder = kept_of(source)
    assert is_whole(folder)
    weights = folder / "model.safetensors"
    good = weights.read_bytes()
    start = 8 + int.from_bytes(good[:8], "little")
    weights.write_bytes(good[:start] + bytes(255 - b for b in good[start:]))
    assert not is_whole(folder)
    second = built(source, tmp_path / "two")
    assert weights.read_bytes() == good
    assert second.manifest.files["stages/llm/model.onnx"] == first.manifest.files["stages/llm/model.onnx"]


@pytest.mark.parametrize("damage", ["no config", "no seal", "broken seal", "another file", "a file", "a link"])
def test_any_damage_of_a_kept_checkpoint_heals(damage: str, source: Path, tmp_path: Path) -> None:
    built(source, tmp_path / "one")
    folder = kept_of(source)
    if damage == "no config":
        (folder / "config.json").unlink()
        (folder / REPORT).unlink()
    elif damage == "no seal":
        (folder / kept.SEAL).unlink()
    elif damage == "broken seal":
        (folder / kept.SEAL).write_text("[1]")
    elif damage == "another file":
        (folder / "more.safetensors").write_bytes(b"x")
    else:
        shutil.rmtree(folder)
        folder.write_text("x") if damage == "a file" else folder.symlink_to(tmp_path / "one")
    assert not is_whole(folder)
    assert built(source, tmp_path / "two").manifest.source == read_manifest(tmp_path / "one").source
    assert is_whole(folder)
    assert (tmp_path / "one" / "manifest.json").is_file()


def test_a_calibrated_bundle_claims_only_what_equals_the_original(source: Path, tmp_path: Path) -> None:
    manifest = built(source, tmp_path / "b").manifest
    modules = {module["module"]: module for module in manifest.recipe["modules"]}
    exact = {name for name, module in modules.items() if module["bit_exact"]}
    assert exact == {"model.embed_tokens", "lm_head"}  # kept as floats, as the original has them
    assert {module["stored_as"] for module in modules.values()} == {"float32"}
    assert manifest.recipe["summary"]["bit_exact"] == 2
    assert recipe_line(manifest.recipe).endswith("2 of 16 taken over bit-exactly")
    assert "2 of 16 taken over bit-exactly" in (tmp_path / "b" / "README.md").read_text()


def test_options_without_meaning_for_a_calibrated_build(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"The recipe r .*leave out --allow-nonfinite"):
        built(source, tmp_path / "b", allow_nonfinite=True)
    with pytest.raises(UsageError, match=r"The recipe r .*--requantize has no meaning"):
        export(source, tmp_path / "b", recipe=recipe_of(), requantize=True)
    staged = PLAIN + "stages:\n  llm: {body: {format: int4, algorithm: mse}}\n"
    with pytest.raises(UsageError, match="--requantize"):
        checked_recipe(recipe_of(staged), allow_nonfinite=False, requantize=True)
    assert checked_recipe(recipe_of(PLAIN), allow_nonfinite=True, requantize=True) == recipe_of(PLAIN)
    assert not (tmp_path / "b").exists()
    assert not quantized_home().exists()


def test_a_lost_kept_checkpoint_is_said_and_made_again_by_force(source: Path, tmp_path: Path) -> None:
    text = MSE.replace("int4", "int8")
    built(source, tmp_path / "b", text)
    folder = kept_of(source, text)
    assert built(source, tmp_path / "b", text, force=True).reused
    (folder / "config.json").write_text("{")
    for _ in range(2):
        with pytest.raises(
            BundleError, match=r"not whole in the cache any more.*`edgewright deploy` again with --force"
        ):
            verify_bundle(tmp_path / "b", open_checkpoint(source))
        assert built(source, tmp_path / "b", text).reused  # the bundle itself is as it was
        shutil.rmtree(folder, ignore_errors=True)
    assert not built(source, tmp_path / "b", text, force=True).reused
    assert verify_bundle(tmp_path / "b", open_checkpoint(source)).passed


def test_a_second_build_of_the_same_waits(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()
    make, runs = quantized._make, []

    def slow(*arguments: Any) -> Any:
        runs.append(1)
        inside.set()
        assert go_on.wait(60)
        return make(*arguments)

    monkeypatch.setattr(quantized, "_make", slow)
    results: list[Any] = []

    class Waiting(Watch):
        def step(self, title: str, total: int = 0) -> Any:
            if title == "wait for another run of the same":
                go_on.set()
            return super().step(title, total)

    second = Waiting()
    threads = [threading.Thread(target=lambda: results.append(built(source, tmp_path / "one")))]
    threads.append(threading.Thread(target=lambda: results.append(built(source, tmp_path / "two", progress=second))))
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(120)
    assert len(results) == 2
    assert runs == [1]
    assert "wait for another run of the same" in second.steps
    assert results[0].manifest.files.keys() == results[1].manifest.files.keys()
    assert results[0].manifest.source == results[1].manifest.source


def test_a_cache_that_cant_be_used(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for make in (built, lambda s, o: quantize_checkpoint(s, o, recipe=recipe_of())):
        with pytest.raises(OutputError, match=r"cache folder .*file/edgewright can't be used.*XDG_CACHE_HOME"):
            make(source, tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    deploy(source, tmp_path / "plain", recipe="int8", verify=False)  # needs no cache


def test_what_killed_runs_left_is_swept(tmp_path: Path) -> None:
    check_cache()
    home = quantized_home()
    names = [".dead.partial-99", ".live.partial-1", ".dead.old-7"]
    for name in names:
        (home / name).mkdir()
        (home / name / "x").write_bytes(b"x")
    (home / "whole").mkdir()
    with held(home / "live", SILENT):
        sweep()
        assert {path.name for path in home.iterdir() if path.is_dir()} == {".live.partial-1", "whole"}
    sweep()
    assert {path.name for path in home.iterdir() if path.is_dir()} == {"whole"}


@pytest.mark.parametrize(("kind", "bits", "calibrated"), [
    ("Q4_0", 4, True), ("Q4_1", 4, True), ("Q4_1", 4, False), ("Q8_0", 4, True), ("Q8_0", 4, False), ("Q5_0", 8, True),
])  # fmt: skip
def test_codes_of_a_gguf_file_are_taken_over_or_said_to_be_rounded_again(
    kind: str, bits: int, calibrated: bool, tmp_path: Path
) -> None:
    gguf_checkpoint(tmp_path / "m.gguf", kind, seed=7)
    how = f"{{format: int{bits}, algorithm: {'mse' if calibrated else 'minmax'}}}"
    text = f"body: {how}\nlm_head: {how}\nembedding: {how}\n"
    manifest = export(tmp_path / "m.gguf", tmp_path / "e", recipe=recipe_of(text)).manifest
    modules = manifest.recipe["modules"]
    fits = int(kind[1]) <= bits
    assert ("origin" in manifest.source) == calibrated
    assert {module["stored_as"] for module in modules} == {kind}
    assert {module["bit_exact"] for module in modules} == {fits}
    said = f"9 modules that the source stores as {kind} were rounded a second time, to int{bits} group 32"
    assert (said in manifest.notes) == (not fits)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert verify_bundle(tmp_path / "e", checkpoint).to_json()["levels"]["weights"]["status"] == "passed"
    if calibrated:
        parsed = recipe_of(text)
        done = quantize_checkpoint(tmp_path / "m.gguf", tmp_path / "q", recipe=parsed)
        assert done.notes == (() if fits else (said,))
        report = json.loads((tmp_path / "q" / REPORT).read_text())
        assert report.get("notes", []) == list(done.notes)
        found = preview(checkpoint, parsed)
        parts = [tensor.encoded(0, tensor.shape[0]) for tensor in open_checkpoint(tmp_path / "q").tensors.values()
                 if getattr(tensor, "encoding", None) is not None]  # fmt: skip
        assert found.bytes == sum(part.nbytes for given in parts for part in given.values())
        assert {row["module"]: row["algorithm"] for row in found.rows} == {r.module: r.algorithm for r in done.reports}


@pytest.mark.parametrize("seed", range(3))
def test_a_seal_sees_every_changed_byte(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path / "f"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_bytes(rng.bytes(int(rng.integers(1, 99))))
    seal(folder)
    assert is_whole(folder)
    data = bytearray((folder / "b").read_bytes())
    data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    (folder / "b").write_bytes(bytes(data))
    assert not is_whole(folder)
    assert json.loads((folder / kept.SEAL).read_text()).keys() == {"a", "b"}
