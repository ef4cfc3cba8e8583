"""Deploy, export, compile: whole or not at all, the same bytes from the same inputs, nothing done twice."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MakeBundle, write_source
from edgewright.build import llm, pipeline
from edgewright.build.key import build_key, source_record, up_to_date
from edgewright.build.pipeline import compile_bundle, deploy, export
from edgewright.bundle import Manifest, check_files, read_manifest, this_machine
from edgewright.checkpoint import open_checkpoint
from edgewright.errors import (
    BundleError,
    BundleTamperedError,
    CheckpointError,
    ConfigError,
    EdgewrightError,
    OutputError,
    RecipeError,
    TensorMismatchError,
    UnknownModelTypeError,
    UsageError,
    VerificationError,
)
from edgewright.formats import IntFormat
from edgewright.quant.recipe import Rule
from edgewright.quant.recipe_file import load_recipe
from edgewright.runtime.llm import LLM
from edgewright.targets import cpu


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_same_inputs_give_the_same_bytes(source: Path, tmp_path: Path) -> None:
    bundles = [deploy(source, tmp_path / name) for name in ("one", "two")]
    assert not any(bundle.reused for bundle in bundles)
    one, two = (contents(bundle.path) for bundle in bundles)
    assert one.keys() == two.keys()
    for name in one:
        assert one[name] == two[name], name
    assert bundles[0].manifest == bundles[1].manifest == read_manifest(tmp_path / "one")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


def test_the_manifest_says_what_was_done(shared_bundle: MakeBundle, source: Path) -> None:
    manifest = read_manifest(shared_bundle("int4"))
    assert manifest.model["model_type"] == "qwen3"
    assert manifest.model["max_context"] == 256
    assert manifest.model["parameters"] == sum(np.prod(t.shape) for t in open_checkpoint(source).tensors.values())
    assert manifest.source["name"] == "tiny-qwen3"
    assert manifest.source["files"]["model.safetensors"]["bytes"] == (source / "model.safetensors").stat().st_size
    assert "tokenizer.json" in manifest.source["files"]
    modules = {m["module"]: m for m in manifest.recipe["modules"]}
    assert len(modules) == 2 * 7 + 2
    assert modules["model.layers.1.mlp.down_proj"] == {
        "module": "model.layers.1.mlp.down_proj", "kind": "body", "bits": 4, "group": 32, "zero_point": False,
        "int8_activations": True, "stored_as": "float32", "bit_exact": False,
    }  # fmt: skip
    assert manifest.recipe["summary"]["formats"] == {"int4 group 32": 14, "int8 group 32": 2}
    assert manifest.target == "cpu"
    assert manifest.stages["llm"].machine == this_machine()
    assert manifest.verdict == {"status": "not checked"}
    check_files(shared_bundle("int4"), manifest)
    on_disk = {name for name in contents(shared_bundle("int4")) if name != "manifest.json"}
    assert on_disk == set(manifest.files)


def test_a_verified_bundle_says_so(source: Path, tmp_path: Path) -> None:
    built = deploy(source, tmp_path / "b", recipe="float32")
    assert built.manifest.verdict["status"] == "passed"
    report = json.loads((tmp_path / "b/reports/verify.json").read_bytes())
    assert report["status"] == "passed"
    assert "**passed**" in (tmp_path / "b/README.md").read_text(encoding="utf-8")
    check_files(tmp_path / "b", built.manifest)


def test_an_unchanged_rebuild_is_reused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = deploy(source, tmp_path / "b", verify=False)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("*")}
    monkeypatch.setattr(llm, "build_llm", None)  # would fail if anything were built
    again = deploy(source, tmp_path / "b", verify=False)
    assert again.reused
    assert again.manifest == first.manifest
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("*")} == before


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "int8"},
        {"max_context": 77},
        {"verify": True},
        {"recipe": dataclasses.replace(load_recipe("int4"), body=IntFormat(4, 64, False))},
    ],
    ids=["recipe", "context", "verify", "group"],
)
def test_other_options_are_another_build(change: dict[str, Any], source: Path, tmp_path: Path) -> None:
    deploy(source, tmp_path / "b", verify=False)
    with pytest.raises(OutputError, match="b exists already"):
        deploy(source, tmp_path / "b", **{"verify": False, **change})
    built = deploy(source, tmp_path / "b", force=True, **{"verify": False, **change})
    assert not built.reused
    check_files(tmp_path / "b", built.manifest)


def test_another_source_is_another_build(tmp_path: Path) -> None:
    source = write_source(tmp_path / "s")
    deploy(source, tmp_path / "b", verify=False)
    config = json.loads((source / "tokenizer_config.json").read_text())
    (source / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<bos>"}))
    with pytest.raises(OutputError):
        deploy(source, tmp_path / "b", verify=False)
    # A weight changed in place, sizes and names the same.
    deploy(source, tmp_path / "b", verify=False, force=True)
    raw = bytearray((source / "model.safetensors").read_bytes())
    raw[-2] ^= 0x40
    (source / "model.safetensors").write_bytes(raw)
    with pytest.raises(OutputError):
        deploy(source, tmp_path / "b", verify=False)


def test_a_damaged_bundle_is_not_reused(source: Path, tmp_path: Path) -> None:
    built = deploy(source, tmp_path / "b", verify=False)
    assert up_to_date(tmp_path / "b", built.manifest.key) is not None
    (tmp_path / "b/stages/llm/weights.bin").unlink()
    assert up_to_date(tmp_path / "b", built.manifest.key) is None
    with pytest.raises(OutputError):
        deploy(source, tmp_path / "b", verify=False)
    deploy(source, tmp_path / "b", verify=False, force=True)
    check_files(tmp_path / "b", read_manifest(tmp_path / "b"))


def test_keys_tell_builds_apart(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = source_record(open_checkpoint(source))
    int4 = load_recipe("int4")
    keys = {
        build_key(record, int4, target="cpu", max_context=None),
        build_key(record, int4, target="cpu", max_context=64),
        build_key(record, load_recipe("int8"), target="cpu", max_context=None),
        build_key({**record, "files": {}}, int4, target="cpu", max_context=None),
    }
    assert build_key(record, int4, target="cpu", max_context=None) in keys
    monkeypatch.setattr("edgewright.build.key.__version__", "9.9")
    keys.add(build_key(record, int4, target="cpu", max_context=None))
    assert len(keys) == 5


# -- whole or not at all -----------------------------------------------------------------------------------------------

Fail = Callable[..., Any]
STEPS = ["build_llm", "quantize_stage", "write_stage", "model_card", "file_entries", "write_manifest", "_verify"]


def raiser(error: BaseException) -> Fail:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
@pytest.mark.parametrize("step", [*STEPS, "compile", "rename", "sidecars"])
def test_a_failure_at_any_step_leaves_nothing(
    step: str, error: BaseException, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(monkeypatch, step, error)
    with pytest.raises(type(error)):
        deploy(source, tmp_path / "out" / "b")
    assert not list((tmp_path / "out").iterdir())


def place(monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException) -> None:
    """Make a step of deploy fail."""
    if step == "compile":
        monkeypatch.setattr(cpu, "compile_stage", raiser(error))
    elif step == "rename":
        monkeypatch.setattr(Path, "rename", raiser(error))
    elif step == "sidecars":
        monkeypatch.setattr("edgewright.checkpoint.checkpoint.Checkpoint.sidecars", raiser(error))
    else:
        monkeypatch.setattr(pipeline if hasattr(pipeline, step) else llm, step, raiser(error))


@pytest.mark.parametrize("step", ["write_stage", "compile", "_verify"])
def test_a_failed_forced_build_keeps_the_old_bundle(
    step: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(source, tmp_path / "b", verify=False)
    before = contents(tmp_path / "b")
    place(monkeypatch, step, RuntimeError("boom"))
    with pytest.raises(RuntimeError):
        deploy(source, tmp_path / "b", recipe="int8", force=True)
    assert contents(tmp_path / "b") == before
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "No space is left while writing b"),
        (errno.EACCES, "can't be written"),
        (errno.EROFS, "choose a folder you may write to"),
        (errno.EIO, "Writing b failed"),
    ],
)
def test_what_the_system_refuses_is_said_in_a_sentence(
    code: int, words: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(monkeypatch, "write_stage", OSError(code, os.strerror(code)))
    with pytest.raises(OutputError, match=words):
        deploy(source, tmp_path / "b")
    assert not list(tmp_path.iterdir())


def test_a_failed_verification_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_stage = cpu.compile_stage

    def damage(folder: Path, *args: Any, **kwargs: Any) -> Any:
        raw = bytearray((folder / "weights.bin").read_bytes())
        raw[len(raw) // 2 :] = bytes(len(raw) - len(raw) // 2)
        (folder / "weights.bin").write_bytes(raw)
        return compile_stage(folder, *args, **kwargs)

    monkeypatch.setattr(cpu, "compile_stage", damage)
    with pytest.raises(VerificationError, match="failed verification and was not kept: weights:"):
        deploy(source, tmp_path / "b")
    assert not list(tmp_path.iterdir())


def test_outputs_in_the_way(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for force in (False, True):
        with pytest.raises(OutputError, match="file exists"):
            deploy(source, tmp_path / "file", force=force)
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(OutputError, match="folder exists and is no bundle"):
            deploy(source, tmp_path / "folder", force=force)
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "mine"


SOURCES: dict[str, tuple[Callable[[Path], object], type[EdgewrightError], str]] = {
    "no config": (lambda s: (s / "config.json").unlink(), CheckpointError, "config.json"),
    "no weights": (lambda s: (s / "model.safetensors").unlink(), CheckpointError, "model.safetensors"),
    "truncated": (lambda s: os.truncate(s / "model.safetensors", 5000), CheckpointError, "model.safetensors"),
    "family": (lambda s: edit(s, model_type="qwen9"), UnknownModelTypeError, "qwen"),
    "key": (lambda s: edit(s, experts=8), ConfigError, "experts"),
    "tensor": (lambda s: edit(s, num_hidden_layers=1, layer_types=None), TensorMismatchError, "model.layers.1."),
}


def edit(source: Path, **keys: Any) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, **keys}))


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_bad_sources_leave_nothing(name: str, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    damage, error, words = SOURCES[name]
    damage(source)
    with pytest.raises(error) as caught:
        deploy(source, tmp_path / "out" / "b")
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_bad_arguments_cost_nothing(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"target 'gpu' is unknown; known are cpu"):
        deploy(source, tmp_path / "b", target="gpu")
    with pytest.raises(UsageError, match=r"dialect 'gpu' is unknown; known are portable, onnx-qdq, onnxruntime"):
        export(source, tmp_path / "b", dialect="gpu")
    with pytest.raises(RecipeError, match="int3"):
        deploy(source, tmp_path / "b", recipe="int3")
    with pytest.raises(CheckpointError, match="tinyqwen3"):
        deploy(source.with_name("tinyqwen3"), tmp_path / "b")
    with pytest.raises(ConfigError, match="context of 257"):
        deploy(source, tmp_path / "b", max_context=257)
    recipe = dataclasses.replace(load_recipe("int4"), rules=(Rule("x.*", IntFormat(8, 32, False), "r.yaml:5"),))
    with pytest.raises(RecipeError, match=r"r\.yaml:5"):
        deploy(source, tmp_path / "b", recipe=recipe)
    assert not list(tmp_path.iterdir())


# -- export and compile ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["int4", "float16"])
def test_export_and_compile_give_what_deploy_gives(
    recipe: str, source: Path, shared_bundle: MakeBundle, tmp_path: Path
) -> None:
    exported = export(source, tmp_path / "exported", recipe=recipe, dialect="onnxruntime")
    assert exported.manifest.stages["llm"].engine is None
    assert exported.manifest.stages["llm"].machine is None
    assert exported.manifest.target is None
    built = compile_bundle(tmp_path / "exported", tmp_path / "compiled")
    check_files(tmp_path / "compiled", built.manifest)
    mine, theirs = contents(tmp_path / "compiled"), contents(shared_bundle(recipe))
    assert mine.keys() == theirs.keys()
    same = [name for name in mine if name.startswith(("stages/", "sidecars/"))]
    assert all(mine[name] == theirs[name] for name in same)
    assert len(same) >= 6
    deployed = read_manifest(shared_bundle(recipe))
    assert built.manifest.stages == deployed.stages
    assert built.manifest.verdict == {"status": "not checked"}
    # A bundle is compiled again, too.
    again = compile_bundle(shared_bundle(recipe), tmp_path / "again")
    assert again.manifest == built.manifest


def test_compile_does_not_touch_what_it_reads(source: Path, tmp_path: Path) -> None:
    """Files are shared as hard links; writing the new bundle must not write through them."""
    export(source, tmp_path / "exported", recipe="int8", dialect="onnxruntime")
    before = contents(tmp_path / "exported")
    compile_bundle(tmp_path / "exported", tmp_path / "compiled")
    compile_bundle(tmp_path / "compiled", tmp_path / "again")
    assert contents(tmp_path / "exported") == before
    check_files(tmp_path / "exported", read_manifest(tmp_path / "exported"))
    check_files(tmp_path / "compiled", read_manifest(tmp_path / "compiled"))


def test_exported_folders_run(source: Path, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 95, 40)
    logits = []
    for dialect in ("portable", "onnxruntime"):
        export(source, tmp_path / dialect, dialect=dialect)
        logits.append(LLM.load(tmp_path / dialect, threads=1).session().append(ids, logits="all"))
    assert np.abs(logits[0] - logits[1]).max() < 2e-5 * np.abs(logits[0]).max()


def test_compile_refuses_other_dialects_and_damage(source: Path, tmp_path: Path) -> None:
    export(source, tmp_path / "portable")
    with pytest.raises(BundleError, match=r"portable dialect.* export with --dialect onnxruntime"):
        compile_bundle(tmp_path / "portable", tmp_path / "b")
    export(source, tmp_path / "ort", dialect="onnxruntime")
    raw = bytearray((tmp_path / "ort/stages/llm/weights.bin").read_bytes())
    raw[99] ^= 1
    (tmp_path / "ort/stages/llm/weights.bin").write_bytes(raw)
    with pytest.raises(BundleTamperedError):
        compile_bundle(tmp_path / "ort", tmp_path / "b")
    with pytest.raises(BundleError, match="does not exist"):
        compile_bundle(tmp_path / "nowhere", tmp_path / "b")
    with pytest.raises(UsageError):
        compile_bundle(tmp_path / "ort", tmp_path / "b", target="npu")
    assert not (tmp_path / "b").exists()


def test_a_failed_compile_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(source, tmp_path / "exported", dialect="onnxruntime")
    place(monkeypatch, "compile", RuntimeError("boom"))
    with pytest.raises(RuntimeError):
        compile_bundle(tmp_path / "exported", tmp_path / "out" / "b")
    assert not list((tmp_path / "out").iterdir())


def test_sidecars_are_carried_over(shared_bundle: MakeBundle, source: Path) -> None:
    folder = shared_bundle("int4") / "sidecars"
    assert (folder / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert sorted(p.name for p in folder.iterdir()) == [
        "chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip


def test_a_source_without_a_tokenizer_is_a_bundle_for_ids(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "s")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tmp_path / "s" / name).unlink()
    built = deploy(tmp_path / "s", tmp_path / "b", recipe="float32")
    assert isinstance(built.manifest, Manifest)
    assert not any(name.startswith("sidecars/") for name in built.manifest.files)
    assert built.manifest.verdict["status"] == "passed"
