"""A Hugging Face folder: config, safetensors (one file or shards with an index), tokenizer files."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from edgewright.checkpoint.checkpoint import Checkpoint
from edgewright.checkpoint.layouts import MODELOPT, read_quantized
from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.checkpoint.text import MAX_JSON_BYTES, REMAKE, parse_json, read_json_object, shown
from edgewright.errors import (
    CheckpointError,
    MalformedHeaderError,
    MissingShardError,
    SourceNotFoundError,
    UnsupportedFormatError,
)

INDEX = "model.safetensors.index.json"
SIDECARS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
)
#: Every file beside the weights that `sidecars` may be made of.
ASSETS = (*SIDECARS, "chat_template.json", "tokenizer.model", "added_tokens.json")
_SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")


def open_folder(folder: Path) -> Checkpoint:
    """Open a Hugging Face folder; only headers are read.

    Raises SourceNotFoundError (no config or weights), UnsupportedFormatError (pickle), MissingShardError (index and
    shards disagree), and what `read_safetensors` raises.
    """
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise SourceNotFoundError(_no_config(folder))
    config = read_json_object(inside(folder, "config.json"))
    tensors, weights = read_weights(folder)
    files = (config_path, *weights)
    if (folder / MODELOPT).is_file():
        files = (*files, inside(folder, MODELOPT))
    config, tensors, quantization = read_quantized(folder, config, tensors)
    sidecars = functools.cache(lambda: read_sidecars(folder))
    return Checkpoint(folder, "huggingface", config, tensors, files, sidecars, quantization)


def read_weights(folder: Path) -> tuple[dict[str, StoredTensor], tuple[Path, ...]]:
    """Return a folder's tensors by name and the files they are in, the index of shards first if there is one."""
    if (folder / INDEX).is_file():
        index = inside(folder, INDEX)
        tensors, shards = _read_shards(folder, index)
        return tensors, (folder / INDEX, *shards)
    weight = inside(folder, _single_file(folder))
    return dict(read_safetensors(weight)), (weight,)


def inside(folder: Path, name: str) -> Path:
    """Return `folder / name`, refusing a link that leads out of the folder.

    The links of a Hugging Face cache (`snapshots/<revision>/file` to `blobs/<hash>`) are followed.
    """
    path = folder / name
    root, target = folder.resolve(), path.resolve()
    homes = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    if not any(target.is_relative_to(home) for home in homes):
        raise CheckpointError(f"{path} is a link that leads out of the folder; put the file itself there.")
    return path


def _no_config(folder: Path) -> str:
    if any(folder.glob("*.gguf")):
        return f"{folder} has no config.json but holds GGUF files; give the path of the GGUF file itself."
    return (
        f"{folder} is not a checkpoint, it has no config.json (looked for config.json with model.safetensors or"
        f" {INDEX}); give a Hugging Face model folder or a .gguf file."
    )


def _single_file(folder: Path) -> str:
    """Return the name of the folder's only safetensors file; `model.safetensors` wins over files that aren't shards."""
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if "model.safetensors" in names and not any(map(_SHARD.search, names)):
        return "model.safetensors"
    if len(names) > 1 or (names and _SHARD.search(names[0]) and "-00001-of-00001" not in names[0]):
        raise MissingShardError(
            f"{folder} holds {len(names)} safetensors files ({shown(names[0])} ...) but no {INDEX} that says what"
            " belongs together; add the index from the model's repository."
        )
    if names:
        return names[0]
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")) or any(folder.glob("*.pt")):
        raise UnsupportedFormatError(
            f"{folder} has only PyTorch pickle weights, which can run code when loaded; convert them to"
            " model.safetensors, for example with transformers' save_pretrained."
        )
    raise SourceNotFoundError(
        f"{folder} has a config.json but no weights (looked for model.safetensors and {INDEX}); download them too."
    )


def _read_shards(folder: Path, index_path: Path) -> tuple[dict[str, StoredTensor], list[Path]]:
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise MalformedHeaderError(f"{index_path} has no weight_map from tensor names to file names; {REMAKE}.")
    listed: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        listed.setdefault(shard, set()).add(tensor)
    stored: dict[str, dict[str, StoredTensor]] = {}
    for shard in listed:
        _check_shard_name(shard, index_path)
        if not (folder / shard).is_file():
            raise MissingShardError(
                f"{index_path} names the shard {shown(shard)}, which is not in the folder; download it into {folder}."
            )
        stored[shard] = dict(read_safetensors(inside(folder, shard)))
    for shard, names in listed.items():
        _check_shard(shard, names, stored, weight_map, index_path)
    return {name: stored[shard][name] for name, shard in weight_map.items()}, [folder / shard for shard in listed]


def _check_shard_name(shard: str, index_path: Path) -> None:
    plain = shard and not any(mark in shard for mark in "/\\\0:") and shard not in (".", "..")
    if not plain or not shard.endswith(".safetensors"):
        raise MalformedHeaderError(
            f"{index_path} names the shard {shown(shard)}, which is not the name of a safetensors file in the folder;"
            f" {REMAKE}."
        )


def _check_shard(
    shard: str,
    names: set[str],
    stored: dict[str, dict[str, StoredTensor]],
    weight_map: dict[str, str],
    index_path: Path,
) -> None:
    for name in sorted(names - stored[shard].keys()):
        other = next((other for other in stored if name in stored[other]), None)
        where = f"it is in {shown(other)}" if other else "no shard has it"
        raise MissingShardError(
            f"{index_path} says that tensor {shown(name)} is in {shown(shard)}, but {where}; download index and"
            " shards of the same revision."
        )
    for name in sorted(stored[shard].keys() - names):
        where = f"puts it in {shown(weight_map[name])}" if name in weight_map else "doesn't list it"
        raise MissingShardError(
            f"the shard {shown(shard)} holds tensor {shown(name)}, but {index_path} {where}; download index and"
            " shards of the same revision."
        )


def read_sidecars(folder: Path) -> dict[str, bytes]:
    """Return the folder's tokenizer, template and generation files by name.

    The file `chat_template.jinja` wins over the template inside `tokenizer_config.json`; of a list of named templates
    the one named "default" is taken. A folder with only a SentencePiece `tokenizer.model` gets a `tokenizer.json`.
    """
    found: dict[str, bytes] = {}
    for name in SIDECARS:
        if (folder / name).is_file():
            path = inside(folder, name)
            if path.stat().st_size > MAX_JSON_BYTES:
                raise MalformedHeaderError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB; {REMAKE}.")
            found[name] = path.read_bytes()
    settings = _object(found, "tokenizer_config.json", folder)
    if "chat_template.jinja" not in found:
        template = chat_template(settings)
        if template is None and (folder / "chat_template.json").is_file():
            template = chat_template(read_json_object(inside(folder, "chat_template.json")))
        if template is not None:
            found["chat_template.jinja"] = template.encode()
    if "tokenizer.json" not in found and (folder / "tokenizer.model").is_file():
        from edgewright.checkpoint.sentencepiece import rebuild_tokenizer

        added = folder / "added_tokens.json"
        extra = read_json_object(inside(folder, added.name)) if added.is_file() else {}
        found["tokenizer.json"] = rebuild_tokenizer(inside(folder, "tokenizer.model"), settings, extra)
    return found


def _object(found: dict[str, bytes], name: str, folder: Path) -> dict[str, Any]:
    value = parse_json(found[name], str(folder / name)) if name in found else {}
    if not isinstance(value, dict):
        raise MalformedHeaderError(f"{folder / name} is not a JSON object; {REMAKE}.")
    return value


def chat_template(settings: dict[str, Any]) -> str | None:
    """Return the chat template in a tokenizer config: the text, or the "default" one of a list of named templates."""
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else None
