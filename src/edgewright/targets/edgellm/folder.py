"""The folder that TensorRT Edge-LLM's builder reads: the graph with its weights, and the files beside it.

Nothing is written twice: graph, weights and tokenizer are links to the bundle's own files where the disk allows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgewright.dialects.edgellm import CONFIG, TABLE
from edgewright.errors import BundleError
from edgewright.files import copy_files
from edgewright.graph.writer import MODEL_FILE, WEIGHTS_FILE
from edgewright.runtime.embedding import SIDECAR, EmbeddingTable

CONFIG_FILE = "config.json"
_SIDECARS = ("tokenizer.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja")
_TOKENIZER_CONFIG = "tokenizer_config.json"
#: Rows that are converted at a time.
_ROWS = 1024


def metadata(graph: onnx.GraphProto) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config and the table's record that the dialect put into a graph; raises BundleError without them."""
    found = {entry.key: entry.value for entry in graph.metadata_props}
    try:
        config, table = json.loads(found[CONFIG]), json.loads(found[TABLE])
        if not isinstance(config, dict) or not isinstance(table, dict):
            raise ValueError(CONFIG)
    except (KeyError, ValueError):
        raise BundleError(
            "The graph has no config for TensorRT Edge-LLM's builder in it: export it again with --dialect "
            "tensorrt-edge-llm."
        ) from None
    return config, table


def write_folder(root: Path, stage: Path, folder: Path, graph: onnx.GraphProto) -> None:
    """Write everything into `folder`, below the bundle `root`, for the graph in `stage`."""
    config, record = metadata(graph)
    folder.mkdir(parents=True, exist_ok=True)
    copy_files(stage, folder, (MODEL_FILE, WEIGHTS_FILE))
    sidecars = root / "sidecars"
    copy_files(sidecars, folder, [name for name in _SIDECARS if (sidecars / name).is_file()])
    if (sidecars / _TOKENIZER_CONFIG).is_file():
        _write_json(folder / _TOKENIZER_CONFIG, _without_template(sidecars / _TOKENIZER_CONFIG))
    _write_json(folder / CONFIG_FILE, config | _ends(config, sidecars / "generation_config.json"))
    _write_table(EmbeddingTable(sidecars / SIDECAR, record), folder / SIDECAR)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _without_template(path: Path) -> dict[str, Any]:
    """Return a tokenizer's config without the chat template, which has a file of its own."""
    return {key: value for key, value in _object(path).items() if key != "chat_template"}


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise BundleError(f"The bundle's {path.name} is damaged: copy the bundle again.")
    return found


def _ends(config: dict[str, Any], generation: Path) -> dict[str, Any]:
    """Return the tokens that end a text, of the model's config and of the generation config."""
    told = (config.get("eos_token_id"), _object(generation).get("eos_token_id"))
    ends = [int(i) for ids in told for i in (ids if isinstance(ids, list) else [ids]) if isinstance(i, int)]
    return {"eos_token_id": list(dict.fromkeys(ends))} if ends else {}


def _write_table(table: EmbeddingTable, path: Path) -> None:
    """Write the embedding table as float16, with what its rows are multiplied by."""
    size = table.vocab * table.hidden * 2
    header = {"embedding": {"dtype": "F16", "shape": [table.vocab, table.hidden], "data_offsets": [0, size]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for rows in table_rows(table):
            file.write(rows.tobytes())


def table_rows(table: EmbeddingTable) -> Iterator[np.ndarray]:
    """Yield runs of rows as float16. Raises BundleError for a row that float16 can't hold."""
    for start in range(0, table.vocab, _ROWS):
        with np.errstate(over="ignore"):
            rows = table.rows(np.arange(start, min(start + _ROWS, table.vocab))).astype(np.float16)
        if not np.isfinite(rows).all():
            raise BundleError("The embedding table holds numbers that float16 can't: TensorRT Edge-LLM reads no other.")
        yield rows


def check_table(root: Path, folder: Path, record: dict[str, Any]) -> None:
    """Raise BundleError unless the builder's embedding table has the rows that the bundle's own has, as float16."""
    table = EmbeddingTable(root / "sidecars" / SIDECAR, record)
    shipped = {"format": {"dtype": "float16"}, "vocab": table.vocab, "hidden": table.hidden, "multiplier": None}
    theirs = EmbeddingTable(folder / SIDECAR, shipped)
    for number, rows in enumerate(table_rows(table)):
        start = number * _ROWS
        if not np.array_equal(theirs.rows(np.arange(start, start + len(rows))), rows.astype(np.float32)):
            raise BundleError("The builder's embedding table is not the bundle's own: build the bundle again.")
