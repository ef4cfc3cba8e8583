"""Calibration data: what a stage really takes, as arrays in folders, the same bytes every time.

A language model reads a text that ships and hands its caches on from one sample to the next. Other stages get seeded
numbers within their contract.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path

import numpy as np
import onnx

from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract, TensorContract
from edgewright.errors import EdgewrightError, GenerationError, UnsupportedFormatError, UsageError
from edgewright.graph.writer import MODEL_FILE
from edgewright.runtime.embedding import INPUT
from edgewright.runtime.engine import Array, array_dtype, zeros
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.runtime.text import Tokenizer
from edgewright.runtime.vocabulary import SIDECAR as VOCABULARY
from edgewright.targets.external.sizes import all_sizes, fixed

_TEXT_CHARACTERS = 20_000
#: How far the graph that a tool is given may be from the stage's own: a part of the RMS, and what is left of zeros.
_LARGEST_PART, _LEAST = 0.02, 1e-6
Feeds = dict[str, Array]


def sample_feeds(
    root: Path, folder: Path, contract: StageContract, sizes: Mapping[str, int], count: int, seed: int
) -> tuple[str, Iterator[Feeds]]:
    """Return what samples are made of (a word for the record), and `count` of them: arrays by input name.

    `folder` holds the graph they are for, `root` the bundle's sidecars. The arrays of a sample hold until the next one
    is asked for. The graph is run on each, so one that can't run, or gives numbers that are not finite, is refused:
    UnsupportedFormatError.
    """
    whole = fixed(contract, all_sizes(contract, sizes))
    graph = onnx.load(folder / MODEL_FILE, load_external_data=False).graph
    try:
        engine = OnnxRuntimeEngine(folder / MODEL_FILE, fixed(contract, sizes), EngineSettings("all"), threads=1)
    except EdgewrightError as error:
        raise UnsupportedFormatError(f"The graph that was made for the tool can't be run: {error}") from None
    generator = np.random.default_rng(seed)
    if any(tensor.name == "past_lengths" for tensor in contract.inputs):
        ids, word = _ids(root, contract, generator)
        return word, _dialog(engine, whole, ids, count, generator)
    return "seeded values", _seeded(engine, whole, count, generator, graph)


def _ids(root: Path, contract: StageContract, generator: np.random.Generator) -> tuple[Array, str]:
    """Return token ids to feed: of the text that ships where there is a tokenizer, else random ones."""
    vocab = int(next(t.shape[-1] for t in contract.outputs if t.name == "logits"))
    embedded = any(tensor.name == INPUT for tensor in contract.inputs)
    path = root / "sidecars" / "tokenizer.json"
    if path.is_file() and not embedded and not (root / "sidecars" / VOCABULARY).exists():
        settings = path.with_name("tokenizer_config.json")
        config = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
        text = resources.files("edgewright.calibration") / "texts" / "english.txt"
        words = text.read_text(encoding="utf-8")[:_TEXT_CHARACTERS]
        ids = np.asarray(Tokenizer.from_files(path, config).encode(words), dtype=np.int64)
        if ids.size and ids.max() < vocab:
            return ids, "text"
    return generator.integers(0, vocab, size=4096), "seeded rows of embeddings" if embedded else "seeded token ids"


def _dialog(
    engine: OnnxRuntimeEngine, contract: StageContract, ids: Array, count: int, generator: np.random.Generator
) -> Iterator[Feeds]:
    """Yield samples of a dialog that begins anew when the cache is full."""
    feeds = {tensor.name: _empty(tensor) for tensor in contract.inputs}
    outputs = {tensor.name: _empty(tensor) for tensor in contract.outputs}
    past = [(layer.past_key, layer.present_key) for layer in contract.kv]
    past += [(layer.past_value, layer.present_value) for layer in contract.kv]
    past += [(state.past, state.present) for state in contract.state]
    tokens = feeds.get(INPUT, feeds.get("input_ids"))
    assert tokens is not None
    seq = tokens.shape[1]
    capacity = feeds[contract.kv[0].past_key].shape[2] if contract.kv else len(ids)
    if seq > capacity:
        raise UsageError(f"A cache of capacity {capacity} has no room for seq {seq}: choose a larger or a smaller one.")
    positions, lengths = feeds["logit_positions"], feeds["past_lengths"]
    positions[:] = np.maximum(np.arange(seq - len(positions), seq), 0)
    call = engine.bind(feeds, outputs)
    length = cursor = 0
    for _ in range(count):
        if length + seq > capacity:
            length = 0
            for name, _present in past:
                feeds[name][...] = 0
        if tokens.dtype == np.float32:
            tokens[...] = generator.standard_normal(tokens.shape)
        else:
            tokens[...] = np.take(ids, np.arange(cursor, cursor + tokens.size), mode="wrap").reshape(tokens.shape)
        lengths[:] = length
        if "total_lengths" in feeds:
            feeds["total_lengths"][:] = length + seq
        cursor += tokens.size
        _run(call, outputs)
        yield feeds
        for before, after in past:
            feeds[before][...] = outputs[after]
        length += seq


def _seeded(
    engine: OnnxRuntimeEngine,
    contract: StageContract,
    count: int,
    generator: np.random.Generator,
    graph: onnx.GraphProto,
) -> Iterator[Feeds]:
    feeds = {tensor.name: _empty(tensor) for tensor in contract.inputs}
    outputs = {tensor.name: _empty(tensor) for tensor in contract.outputs}
    rows = {tensor.name: _rows(graph, tensor.name) for tensor in contract.inputs}
    call = engine.bind(feeds, outputs)
    for _ in range(count):
        for name, array in feeds.items():
            if np.issubdtype(array.dtype, np.floating):
                array[...] = generator.standard_normal(array.shape)
            elif "mask" in name:
                array[...] = 1
            elif array.dtype == np.int64 or array.dtype == np.int32:
                array[...] = generator.integers(0, rows[name], size=array.shape)
            else:  # codes of a cache; those of FP8 stay below the one that is no number
                array[...] = generator.integers(0, 120, size=array.shape)
        _run(call, outputs)
        yield feeds


def _rows(graph: onnx.GraphProto, name: str) -> int:
    """Return how many rows the table has that an input picks from, 1 where it picks from none."""
    sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    names, found = {name}, []
    for node in graph.node:
        if node.op_type == "Gather" and node.input[1] in names and node.input[0] in sizes:
            found.append(sizes[node.input[0]])
        elif node.op_type in ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze") and node.input[0] in names:
            names |= set(node.output)
        elif node.op_type == "DequantizeLinear" and node.input[0] in sizes:
            sizes[node.output[0]] = sizes[node.input[0]]
    return int(min(found, default=1))


def _empty(tensor: TensorContract) -> Array:
    shape = tuple(int(dim) for dim in tensor.shape)
    return zeros(shape, array_dtype(tensor.dtype))


def _run(call: Callable[[], None], outputs: Feeds) -> None:
    try:
        call()
    except GenerationError as error:
        raise UnsupportedFormatError(f"The graph that was made for the tool can't be run: {error}") from None
    for name, array in outputs.items():
        if array.dtype == np.float32 and not np.isfinite(array).all():
            raise UnsupportedFormatError(
                f"The graph that was made for the tool gives {name} that is not finite on calibration data, and its "
                "product would be no better: verify a bundle for the cpu target first."
            )


def check_given(source: Path, contract: StageContract, sizes: Mapping[str, int], feeds: Feeds, folder: Path) -> None:
    """Raise UnsupportedFormatError unless the graph in `folder` gives for a sample what that in `source` does.

    Rounded inputs may fall to the other side between two graphs, so a small part of an output may differ.
    """
    whole = fixed(contract, all_sizes(contract, sizes))
    results = []
    for model, its in ((source / MODEL_FILE, contract), (folder / MODEL_FILE, fixed(contract, sizes))):
        engine = OnnxRuntimeEngine(model, its, EngineSettings("all"), threads=1)
        outputs = {tensor.name: _empty(tensor) for tensor in whole.outputs}
        _run(engine.bind(feeds, outputs), outputs)
        results.append(outputs)
        del engine  # each holds the weights as it computes with them
    for name, wanted in results[0].items():
        left, right = (array.astype(np.float64) for array in (results[1][name], wanted))
        if np.sqrt(np.mean((left - right) ** 2)) > _LARGEST_PART * np.sqrt(np.mean(right**2)) + _LEAST:
            raise UnsupportedFormatError(
                f"The graph that was made for the tool gives another {name} than the stage's own: report it, and use "
                "another target."
            )


def write_samples(feeds: Iterator[Feeds], folder: Path, form: str, names: Mapping[str, str]) -> int:
    """Write each input's samples into its folder below `folder` (`names`), as `00000.npy` or `.raw`; returns how many.

    With `raw` the file `samples.txt` beside them lists each sample's files in a line, `input:=path`.
    """
    for name in names.values():
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines = []
    for index, sample in enumerate(feeds):
        words = []
        for key, array in sample.items():
            path = folder / names[key] / f"{index:05d}.{form}"
            if form == "npy":
                np.save(path, array, allow_pickle=False)
            else:
                path.write_bytes(np.ascontiguousarray(array).tobytes())
            words.append(f"{key}:={folder.name}/{names[key]}/{path.name}")
        lines.append(" ".join(words))
    (folder / "samples.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)
