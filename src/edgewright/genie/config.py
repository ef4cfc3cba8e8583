"""Genie's configurations as typed values, for programs that run or write one, with the plain mapping beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgewright.errors import GenieError
from edgewright.files import os_errors
from edgewright.genie.checks import Kind, notes, require
from edgewright.genie.document import Document, dumped, parse, parse_file

#: What the library's datatypes of tables are called elsewhere in this package; "native" is whatever the model takes.
DATATYPES = {
    "float32": "float32", "ufixed8": "uint8", "ufixed16": "uint16", "sfixed8": "int8", "sfixed16": "int16",
}  # fmt: skip
_UNSIGNED = 1 << 64
_INT32 = 1 << 31


@dataclass(frozen=True)
class Context:
    """Sizes and special tokens. `eos` are all ids that end a dialog; `pad` is the first of them where none is given."""

    size: int
    n_vocab: int
    bos: int
    eos: tuple[int, ...]
    eot: int | None
    pad: int
    n_embd: int | None


@dataclass(frozen=True)
class Sampler:
    """How tokens are chosen, with the library's defaults. The key `greedy` has no effect there: the values have."""

    type: str = "basic"
    seed: int | None = None
    temp: float = 0.1
    top_k: int = 0
    top_p: float = 0.8
    callback: str | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.type == "basic" and (self.temp <= 0 or self.top_k == 1)


@dataclass(frozen=True)
class Embedding:
    """Where tokens get their embeddings. `dtype` is of this package ("uint16"), None for the model's own.

    `scale` and `offset` are None where the file gives none, or gives them as text.
    """

    size: int
    type: str = "callback"
    lut_path: str | None = None
    dtype: str | None = None
    scale: float | None = None
    offset: int | None = None


@dataclass(frozen=True)
class Engine:
    """A model on a back end. `files` are context binaries or the one library, `extensions` the back end's own files."""

    role: str | None
    backend: str
    n_threads: int | None
    files: tuple[str, ...]
    extensions: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Config:
    """A document that the library takes: its kind, its whole mapping, and notes on what the library passes over."""

    kind: Kind
    data: Mapping[str, Any] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def top(self) -> str:
        """The block's name: dialog, text-encoder ..."""
        return min(self.data) if self.kind == "node" else next(iter(self.data))


@dataclass(frozen=True)
class Dialog(Config):
    """A dialog. Paths are as they are written: the library looks them up in the working directory."""

    type: str = "basic"
    context: Context = field(kw_only=True)
    tokenizer: str = field(kw_only=True)
    engines: tuple[Engine, ...] = field(kw_only=True)
    sampler: Sampler | None = None
    embedding: Embedding | None = None
    max_num_tokens: int | None = None
    stop_sequence: tuple[str, ...] = ()


@dataclass(frozen=True)
class StandaloneEngine(Config):
    """An engine that a dialog's may be changed for."""

    context: Context = field(kw_only=True)
    engine: Engine = field(kw_only=True)
    embedding: Embedding | None = None


@dataclass(frozen=True)
class Encoder(Config):
    """A model that makes embeddings: an embedding document, or a node of text or images.

    Sizes and paths are None where the block says none, which a node of images needn't.
    """

    type: str | None = None
    context_size: int | None = None
    n_vocab: int | None = None
    width: int | None = None
    tokenizer: str | None = None
    engine: Engine | None = None
    table: Embedding | None = None


def read_config(path: Path, kind: Kind) -> Config:
    """Read a configuration of any kind; raises GenieError where the library would refuse it, or it can't be read."""
    return config_of(parse_file(path), kind)


def config_of(document: Document, kind: Kind) -> Config:
    """Return a parsed document as a configuration; raises GenieError where the library would refuse it."""
    require(document, kind)
    return Config(kind, document.value, tuple(notes(document, kind)))


def read_dialog(path: Path) -> Dialog:
    """Read a dialog's configuration; raises GenieError where the library would refuse it, or it can't be read."""
    config = read_config(path, "dialog")
    return dialog_of(config, config.data["dialog"])


def read_generator(path: Path) -> Dialog:
    """Read a text-generator node, which is a dialog by another name; raises GenieError."""
    config = read_config(path, "node")
    if config.top != "text-generator":
        raise GenieError(f"{path} is a {config.top} node: give one that generates text.")
    return dialog_of(config, config.data["text-generator"])


def read_engine(path: Path) -> StandaloneEngine:
    """Read a standalone engine's configuration; raises GenieError."""
    config = read_config(path, "engine")
    data = config.data["standalone-engine"]
    embedding = data.get("embedding")
    return StandaloneEngine(
        kind=config.kind,
        data=config.data,
        notes=config.notes,
        context=_context(data["context"]),
        engine=engine_of(data["engine"]),
        embedding=None if embedding is None else embedding_of(embedding),
    )


def read_encoder(path: Path, kind: Literal["embedding", "node"] = "embedding") -> Encoder:
    """Read an embedding's configuration, or a node that encodes; raises GenieError."""
    config = read_config(path, kind)
    if config.top == "text-generator":
        raise GenieError(f"{path} is a text-generator node: give one that encodes.")
    data = config.data[config.top]
    context, engine, table = data.get("context", {}), data.get("engine"), data.get("lut")
    return Encoder(
        kind=config.kind,
        data=config.data,
        notes=config.notes,
        type=data.get("type"),
        context_size=context.get("ctx-size"),
        n_vocab=context.get("n-vocab"),
        width=context.get("embed-size", None if table is None else table["size"]),
        tokenizer=data.get("tokenizer", {}).get("path"),
        engine=None if engine is None else engine_of(engine),
        table=None if table is None else embedding_of({**table, "type": "lut"}),
    )


def read_sampler(path: Path) -> Sampler:
    """Read a sampler's configuration, on its own or standalone; raises GenieError."""
    data = read_config(path, "sampler").data
    return _sampler(data["sampler"] if "sampler" in data else data["standalone-sampler"]["sampler"])


def dialog_of(config: Config, data: Mapping[str, Any]) -> Dialog:
    """Return the typed values of a dialog's block that was checked."""
    engine = data["engine"]
    sampler, embedding = data.get("sampler"), data.get("embedding")
    return Dialog(
        kind=config.kind,
        data=config.data,
        notes=config.notes,
        type=data["type"],
        context=_context(data["context"]),
        tokenizer=data["tokenizer"]["path"],
        engines=tuple(engine_of(one) for one in (engine if isinstance(engine, list) else [engine])),
        sampler=None if sampler is None else _sampler(sampler),
        embedding=None if embedding is None else embedding_of(embedding),
        max_num_tokens=data.get("max-num-tokens"),
        stop_sequence=tuple(data.get("stop-sequence", ())),
    )


def _context(data: Mapping[str, Any]) -> Context:
    eos = data["eos-token"]
    ids = tuple(_int32(one) for one in (eos if isinstance(eos, list) else [eos]))
    eot = data.get("eot-token")
    return Context(
        size=data["size"],
        n_vocab=data["n-vocab"],
        bos=_int32(data["bos-token"]),
        eos=ids,
        eot=None if eot is None else _int32(eot),
        pad=_int32(data.get("pad-token", ids[0])),
        n_embd=data.get("n-embd"),
    )


def _int32(value: int) -> int:
    """Return an id as the library keeps it: what is beyond int64 wraps."""
    return value - _UNSIGNED if value >= _INT32 else value


def _sampler(data: Mapping[str, Any]) -> Sampler:
    return Sampler(
        type=data.get("type", Sampler.type),
        seed=data.get("seed"),
        temp=data.get("temp", Sampler.temp),
        top_k=data.get("top-k", Sampler.top_k),
        top_p=data.get("top-p", Sampler.top_p),
        callback=data.get("callback-name"),
    )


def embedding_of(data: Mapping[str, Any]) -> Embedding:
    """Return the typed values of an embedding's block that was checked.

    The library keeps the offset as int32: the part after the point is lost.
    """
    quant = data.get("quant-param", {})
    scale, offset = (quant.get(name) for name in ("scale", "offset"))
    return Embedding(
        size=data["size"],
        type=data.get("type", Embedding.type),
        lut_path=data.get("lut-path"),
        dtype=DATATYPES.get(data.get("datatype", "native")),
        scale=None if isinstance(scale, str) else scale,
        offset=int(offset) if isinstance(offset, int | float) else None,
    )


def engine_of(data: Mapping[str, Any]) -> Engine:
    """Return the typed values of an engine's block that was checked."""
    backend, model = data["backend"], data["model"]
    extensions = backend.get("extensions", ())
    files = model["binary"]["ctx-bins"] if model["type"] == "binary" else [model["library"]["model-bin"]]
    return Engine(
        role=data.get("role"),
        backend=backend["type"],
        n_threads=data.get("n-threads"),
        files=tuple(files),
        extensions=(extensions,) if isinstance(extensions, str) else tuple(extensions),
        data=data,
    )


def write_config(path: Path, kind: Kind, data: Mapping[str, Any]) -> None:
    """Write a configuration that the library takes. Raises GenieError where it wouldn't, OutputError."""
    text = dumped(data)
    require(parse(text, path.name), kind)
    with os_errors(str(path)):
        path.write_text(text, encoding="utf-8")
