"""Manifests: round trip, every damage refused, nothing outside the folder is touched, other machines refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from conftest import MakeBundle
from edgewright.bundle import (
    MANIFEST,
    Machine,
    Manifest,
    StageEntry,
    check_files,
    read_manifest,
    this_machine,
    write_manifest,
)
from edgewright.bundle.manifest import file_entries
from edgewright.bundle.settings import EngineSettings
from edgewright.contract import KVLayer, StageContract, StateTensor, TensorContract
from edgewright.errors import BundleError, BundleSchemaError, BundleTamperedError, TargetMismatchError
from edgewright.files import canonical_json
from edgewright.runtime.llm import LLM

KEYS, VALUES, STATE = ("batch", 2, "capacity", 10), ("batch", 2, "capacity", 6), ("batch", 4, 3)


def tensors(time: str) -> tuple[TensorContract, ...]:
    shapes = {"k": KEYS, "v": VALUES, "s": STATE}
    return tuple(TensorContract(time + name, "float32", shape) for name, shape in shapes.items())


CONTRACT = StageContract(
    inputs=(
        TensorContract("input_ids", "int64", ("batch", "seq")),
        TensorContract("total_lengths", "int64", ("batch",)),
        *tensors("p"),
    ),
    outputs=(TensorContract("logits", "float32", ("batch", "positions", 97)), *tensors("n")),
    bounds={"batch": (1, 3), "seq": (1, 40)},
    kv=(KVLayer("pk", "pv", "nk", "nv", kv_heads=2, head_dim=10, window=8, value_dim=6),),
    kv_in_place=True,
    state=(StateTensor("ps", "ns", (4, 3)),),
    rope_switch=24,
)
MANIFEST_ = Manifest(
    model={"model_type": "llama", "eos_token_id": [1, 2]},
    source={"name": "t\u00efny", "files": {}},
    recipe={"name": "int4"},
    stages={
        "llm": StageEntry(
            "stages/llm/model.onnx",
            "onnxruntime",
            CONTRACT,
            EngineSettings("basic", 3, {"a": "b"}).to_json(),
            "stages/llm/engine.onnx",
            Machine("x86_64", ("avx2", "fma"), "1.32.0"),
        ),
        "other": StageEntry("m.onnx", "portable", CONTRACT, EngineSettings().to_json()),
    },
    versions={"edgewright": "0.1"},
    verdict={"status": "passed"},
    notes=("a note",),
    target="cpu",
    key="abc",
    files={"a.bin": {"bytes": 3, "sha256": "00"}},
)
SMALL = Manifest(
    model={},
    source={},
    recipe={},
    stages={},
    versions={},
    verdict={"status": "passed"},
    key="k",
    files={"a": {"bytes": 3}},
)


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST_)
    assert read_manifest(tmp_path) == MANIFEST_
    raw = (tmp_path / MANIFEST).read_bytes()
    write_manifest(tmp_path, read_manifest(tmp_path))
    assert (tmp_path / MANIFEST).read_bytes() == raw
    settings = EngineSettings.from_json(MANIFEST_.stages["llm"].settings)
    assert settings == EngineSettings("basic", 3, {"a": "b"})


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    write_manifest(tmp_path, SMALL)
    assert read_manifest(tmp_path) == SMALL
    raw = (tmp_path / MANIFEST).read_bytes()
    for index in range(len(raw)):
        damaged = bytearray(raw)
        damaged[index] ^= (0x01, 0x20, 0x80, 0xFF)[index % 4]
        (tmp_path / MANIFEST).write_bytes(damaged)
        with pytest.raises(BundleError):
            read_manifest(tmp_path)


def test_missing_and_added_bytes_are_noticed_or_mean_nothing(tmp_path: Path) -> None:
    """White space outside of texts may come or go; anything else is refused."""
    write_manifest(tmp_path, SMALL)
    raw = (tmp_path / MANIFEST).read_bytes()
    for index in range(0, len(raw), 7):
        for damaged in (raw[:index], raw[:index] + raw[index + 1 :], raw[:index] + b" " + raw[index:]):
            (tmp_path / MANIFEST).write_bytes(damaged)
            try:
                assert read_manifest(tmp_path) == SMALL
                assert b"".join(damaged.split()) == b"".join(raw.split())
            except BundleError:
                pass


def sealed(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest and give it a fresh digest of its own, as someone who knows how would."""
    body = json.loads((folder / MANIFEST).read_bytes())
    del body["sha256"]
    change(body)
    digest = hashlib.sha256(canonical_json(body)).hexdigest()
    (folder / MANIFEST).write_bytes(canonical_json({**body, "sha256": digest}))


@pytest.mark.parametrize("schema", [5, 99, "1", None, 1.5])
def test_other_schema_versions_are_refused(schema: Any, tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST_)
    sealed(tmp_path, lambda body: body.update(schema=schema))
    with pytest.raises(BundleSchemaError, match=rf"schema {schema}.*update edgewright"):
        read_manifest(tmp_path)


def test_bundles_of_the_first_schema_are_read(tmp_path: Path) -> None:
    """They have no states, no width of values of their own and no second rope."""
    contract = dataclasses.replace(
        CONTRACT,
        inputs=tuple(TensorContract(name, "float32", KEYS) for name in ("pk", "pv")),
        outputs=tuple(TensorContract(name, "float32", KEYS) for name in ("nk", "nv")),
        kv=(KVLayer("pk", "pv", "nk", "nv", kv_heads=2, head_dim=10, window=8),),
        state=(),
        rope_switch=None,
    )
    entry = dataclasses.replace(MANIFEST_.stages["other"], contract=contract)
    write_manifest(tmp_path, dataclasses.replace(MANIFEST_, stages={"llm": entry}))

    def older(body: dict[str, Any]) -> None:
        body["schema"] = 1
        old = body["stages"]["llm"]["contract"]
        del old["state"], old["rope_switch"], old["kv"][0]["value_dim"]

    sealed(tmp_path, older)
    assert read_manifest(tmp_path).stages["llm"].contract == contract


@pytest.mark.parametrize(
    "change",
    [
        {"rope_switch": "24"},
        {"rope_switch": 0},
        {"state": [{"past": "ps", "present": "ns", "shape": [4, 2]}]},
        {"state": [{"past": "ps", "present": "ns", "shape": "many"}]},
        {"state": [{"past": "no", "present": "ns", "shape": [4, 3]}]},
        {"kv_dtype": "float16"},
        {"kv": [{**dataclasses.asdict(CONTRACT.kv[0]), "value_dim": "6"}]},
        {"kv": [{**dataclasses.asdict(CONTRACT.kv[0]), "value_dim": -6}]},
        {"kv": [{**dataclasses.asdict(CONTRACT.kv[0]), "head_dim": 6}]},
    ],
)
def test_caches_that_are_no_inputs_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST_)
    sealed(tmp_path, lambda body: body["stages"]["llm"]["contract"].update(change))
    with pytest.raises(BundleError, match="build the bundle again"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("key", ["model", "source", "recipe", "stages", "versions", "verdict", "notes", "files", "key"])
def test_a_sealed_manifest_without_a_part_is_refused(key: str, tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST_)
    sealed(tmp_path, lambda body: body.pop(key))
    with pytest.raises(BundleError, match=key):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["", "llm\ntouch here\n", "../llm", "l l m", "$(llm)"])
def test_names_of_stages_are_plain_words(name: str, tmp_path: Path) -> None:
    """They go into file names, sentences and scripts."""
    write_manifest(tmp_path, MANIFEST_)
    sealed(tmp_path, lambda body: body.update(stages={name: body["stages"]["llm"]}))
    with pytest.raises(BundleError, match="misspells the stage"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'"schema"', b"\xff\xfe{", b"{" * 50, b"1e999"])
def test_files_that_are_no_manifest(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(BundleError):
        read_manifest(tmp_path)


def test_folders_that_are_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not exist"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"no manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError):
        read_manifest(tmp_path / "file")


# -- files of a bundle -------------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_any_file_is_noticed(own_bundle: MakeBundle) -> None:
    folder = own_bundle()
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    assert {"stages/llm/engine.onnx", "stages/llm/weights.bin", "README.md"} <= manifest.files.keys()
    for name in manifest.files:
        path = folder / name
        raw = path.read_bytes()
        damaged = bytearray(raw)
        damaged[len(raw) // 2] ^= 0x04
        path.write_bytes(damaged)
        with pytest.raises(BundleTamperedError, match=rf"{re.escape(name)} was changed"):
            check_files(folder, manifest)
        with pytest.raises(BundleError):
            LLM.load(folder, threads=1)
        path.write_bytes(raw + b"\0")
        with pytest.raises(BundleTamperedError, match=rf"{re.escape(name)} has \d+ bytes instead of {len(raw)}"):
            check_files(folder, manifest)
        path.unlink()
        with pytest.raises(BundleError, match=rf"{re.escape(name)} is missing"):
            check_files(folder, manifest)
        path.write_bytes(raw)
    check_files(folder, manifest)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "a/../../outside", "..", "a\\..\\b", "a\0b", ""])
def test_names_that_leave_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (tmp_path / "outside").write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    manifest = dataclasses.replace(MANIFEST_, files={name: {"bytes": 1, "sha256": digest}})
    with pytest.raises(BundleError, match="outside the bundle"):
        check_files(bundle, manifest)


def test_links_that_leave_the_folder_are_refused(own_bundle: MakeBundle, tmp_path: Path) -> None:
    folder = own_bundle()
    target = tmp_path / "weights.bin"
    shutil.move(folder / "stages/llm/weights.bin", target)
    (folder / "stages/llm/weights.bin").symlink_to(target)
    with pytest.raises(BundleError, match="link that leaves the bundle"):
        check_files(folder, read_manifest(folder))
    with pytest.raises(BundleError):
        LLM.load(folder, threads=1)
    # A folder that is a link, too.
    (folder / "stages/llm/weights.bin").unlink()
    shutil.move(target, folder / "stages/llm/weights.bin")
    shutil.move(folder / "stages", tmp_path / "stages")
    (folder / "stages").symlink_to(tmp_path / "stages")
    with pytest.raises(BundleError, match="link that leaves the bundle"):
        check_files(folder, read_manifest(folder))


@pytest.mark.parametrize("key", ["graph", "engine"])
def test_stage_paths_that_leave_the_folder_are_refused(key: str, own_bundle: MakeBundle) -> None:
    folder = own_bundle()
    shutil.copytree(folder / "stages", folder.parent / "stages")
    sealed(folder, lambda body: body["stages"]["llm"].update({"engine": None} | {key: f"../stages/llm/{key}.onnx"}))
    with pytest.raises(BundleError, match="outside the bundle"):
        LLM.load(folder, threads=1)


@pytest.mark.parametrize("absolute", [False, True])
def test_external_data_outside_the_folder_is_refused(absolute: bool, own_bundle: MakeBundle) -> None:
    """An engine whose graph reads its weights from elsewhere, sealed with right digests."""
    folder = own_bundle()
    outside = folder.parent / "elsewhere.bin"
    shutil.copy(folder / "stages/llm/weights.bin", outside)
    engine = folder / "stages/llm/engine.onnx"
    model = onnx.load(engine, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = str(outside) if absolute else "../../../elsewhere.bin"
    engine.write_bytes(model.SerializeToString())
    sealed(folder, lambda body: body.update(files=file_entries(folder)))
    check_files(folder, read_manifest(folder))
    with pytest.raises(BundleError):
        LLM.load(folder, threads=1)


# -- machines ----------------------------------------------------------------------------------------------------------

HERE = Machine("x86_64", ("avx2", "avx512f", "fma"), "1.32.0")


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Machine("aarch64", HERE.features, "1.32.0"), "compiled for aarch64 and this is x86_64"),
        (Machine("x86_64", ("avx2", "avx512_vnni", "avx512f", "fma"), "1.32.0"), "this CPU lacks avx512_vnni"),
        (Machine("x86_64", ("avx2",), "1.32.0"), "this CPU has avx512f fma besides"),
        (Machine("x86_64", HERE.features, "1.31.2"), r"ONNX Runtime 1\.31\.2"),
        (Machine("x86_64", HERE.features, "2.32.0"), r"ONNX Runtime 2\.32\.0"),
    ],
)
def test_other_machines_are_refused_with_advice(machine: Machine, words: str) -> None:
    with pytest.raises(TargetMismatchError, match=words) as error:
        machine.require(HERE)
    assert "edgewright compile BUNDLE -o NEW" in str(error.value)


def test_the_same_machine_with_another_patch_release_is_fine() -> None:
    Machine("x86_64", HERE.features, "1.32.7").require(HERE)
    this_machine().require(this_machine())
    assert Machine.from_json(json.loads(json.dumps(HERE.to_json()))) == HERE


def test_a_bundle_of_another_machine_does_not_load(own_bundle: MakeBundle) -> None:
    folder = own_bundle()
    sealed(folder, lambda body: body["stages"]["llm"]["machine"].update(arch="riscv64"))
    with pytest.raises(TargetMismatchError, match="riscv64"):
        LLM.load(folder, threads=1)
