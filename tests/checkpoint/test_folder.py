"""Hugging Face folders: shards and index, sidecars, links, and the errors for what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import assert_one_sentence
from safetensors.numpy import save_file

from edgewright.checkpoint import open_checkpoint
from edgewright.errors import (
    CheckpointError,
    MalformedHeaderError,
    MissingShardError,
    SourceNotFoundError,
    UnsupportedFormatError,
)

INDEX = "model.safetensors.index.json"


def make_folder(folder: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """Write a folder of two shards; return what is in it."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(size=(3, 5)).astype(np.float32) for name in ("a", "b", "c")}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    save_file({name: arrays[name] for name in ("a", "b")}, folder / "m-00001-of-00002.safetensors")
    save_file({"c": arrays["c"]}, folder / "m-00002-of-00002.safetensors")
    write_index(
        folder,
        {"a": "m-00001-of-00002.safetensors", "b": "m-00001-of-00002.safetensors", "c": "m-00002-of-00002.safetensors"},
    )
    return arrays


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def refused(path: Path, error: type[CheckpointError], *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert caught.type is error, caught.value
    assert_one_sentence(caught.value, *parts)


@pytest.mark.parametrize("seed", [0, 1])
def test_shards_are_read_by_the_index(tmp_path: Path, seed: int) -> None:
    arrays = make_folder(tmp_path, seed)
    save_file({"stray": np.ones(3, np.float32)}, tmp_path / "other.safetensors")
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.kind == "huggingface"
    assert checkpoint.config == {"model_type": "llama"}
    assert list(checkpoint.tensors) == ["a", "b", "c"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.tensors[name].read(), array)
    assert [file.name for file in checkpoint.files] == [
        "config.json",
        INDEX,
        "m-00001-of-00002.safetensors",
        "m-00002-of-00002.safetensors",
    ]


def test_single_file_and_its_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, tmp_path / "model.safetensors")
    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "consolidated.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        np.testing.assert_array_equal(open_checkpoint(path).tensors["w"].read(), [[0, 1, 2], [3, 4, 5]])
    refused(
        tmp_path / "consolidated.safetensors", UnsupportedFormatError, "consolidated.safetensors", "model.safetensors"
    )


def test_missing_shard(tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "m-00002-of-00002.safetensors").unlink()
    refused(tmp_path, MissingShardError, INDEX, "m-00002-of-00002.safetensors")


def test_index_and_shards_disagree(tmp_path: Path) -> None:
    make_folder(tmp_path)
    first, second = "m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"
    write_index(tmp_path, {"a": first, "b": first, "c": second, "d": second})
    refused(tmp_path, MissingShardError, "'d'", "no shard has it")
    write_index(tmp_path, {"a": first, "c": second})
    refused(tmp_path, MissingShardError, "'b'", "doesn't list it")
    write_index(tmp_path, {"a": first, "b": second, "c": second})
    refused(tmp_path, MissingShardError, "'b'", first)


@pytest.mark.parametrize(
    "name",
    [
        "../m.safetensors",
        "/etc/m.safetensors",
        "x/m.safetensors",
        "..",
        "",
        "m.bin",
        "C:m.safetensors",
        "x\\m.safetensors",
        "a\0.safetensors",
    ],
)
def test_shard_names_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    make_folder(tmp_path / "f")
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "m.safetensors")
    write_index(tmp_path / "f", {"a": name})
    refused(tmp_path / "f", MalformedHeaderError, INDEX)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "f")
    save_file({"w": np.ones(2, np.float32)}, tmp_path / "outside.safetensors")
    (tmp_path / "f/link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    write_index(tmp_path / "f", {"w": "link.safetensors"})
    refused(tmp_path / "f", CheckpointError, "link.safetensors")
    make_folder(tmp_path / "g")
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "g/tokenizer.json").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path / "g").sidecars()
    assert_one_sentence(caught.value, "tokenizer.json")


def test_links_of_a_hugging_face_cache_are_followed(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--x--y/snapshots/0a1b"
    blobs = tmp_path / "models--x--y/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "c0").write_text("{}")
    save_file({"w": np.ones(2, np.float32)}, blobs / "d1")
    (snapshot / "config.json").symlink_to("../../blobs/c0")
    (snapshot / "model.safetensors").symlink_to("../../blobs/d1")
    np.testing.assert_array_equal(open_checkpoint(snapshot).tensors["w"].read(), [1, 1])


@pytest.mark.parametrize(
    "content",
    [
        '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"a": 1}}',
        "{",
        "\udcff",
    ],
)
def test_broken_index(tmp_path: Path, content: str) -> None:
    make_folder(tmp_path)
    (tmp_path / INDEX).write_bytes(content.encode("utf-8", "surrogateescape"))
    refused(tmp_path, MalformedHeaderError, INDEX)


@pytest.mark.parametrize("content", ["", "[]", "{]", '{"a": 1, "a": 2}'])
def test_broken_config(tmp_path: Path, content: str) -> None:
    make_folder(tmp_path)
    (tmp_path / "config.json").write_text(content)
    refused(tmp_path, MalformedHeaderError, "config.json")


def test_what_is_not_a_checkpoint(tmp_path: Path) -> None:
    refused(tmp_path, SourceNotFoundError, "config.json", "model.safetensors")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    refused(tmp_path, SourceNotFoundError, "GGUF")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, SourceNotFoundError, "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    refused(tmp_path, UnsupportedFormatError, "pickle", "save_pretrained")
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "m-00001-of-00002.safetensors")
    refused(tmp_path, MissingShardError, INDEX)
    save_file({"b": np.ones(2, np.float32)}, tmp_path / "m-00002-of-00002.safetensors")
    refused(tmp_path, MissingShardError, INDEX)
    refused(tmp_path / "pytorch_model.bin", UnsupportedFormatError, "pytorch_model.bin")


def test_missing_path_suggests_near_names(tmp_path: Path) -> None:
    make_folder(tmp_path / "SmolLM2-135M")
    refused(tmp_path / "SmolLM-135M", SourceNotFoundError, "SmolLM2-135M")
    refused(tmp_path / "no/where", SourceNotFoundError, "no folder")


def test_sidecars(tmp_path: Path) -> None:
    make_folder(tmp_path)
    assert open_checkpoint(tmp_path).sidecars() == {}
    settings = {"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "generation_config.json").write_text("{}")
    found = open_checkpoint(tmp_path).sidecars()
    assert found["chat_template.jinja"] == b"D"
    assert sorted(found) == ["chat_template.jinja", "generation_config.json", "tokenizer_config.json"]
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "S"}')
    assert open_checkpoint(tmp_path).sidecars()["chat_template.jinja"] == b"S"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert open_checkpoint(tmp_path).sidecars()["chat_template.jinja"] == b"F"
