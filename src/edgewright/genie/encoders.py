"""The blocks of models that make embeddings: the embedding document, and the nodes of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgewright.genie.blocks import (
    COUNT,
    DEBUG,
    DIALOG,
    FLAG,
    INT32,
    LUT,
    NUMBER,
    PLAIN_LORA,
    TEXT,
    TEXTS,
    TOKENIZER,
    VERSION,
    backend_block,
    model_block,
)
from edgewright.genie.document import Place
from edgewright.genie.schema import Anything, Block, Either, Keys, Problem, Text
from edgewright.genie.starting import stumbles

CONTEXT = Block(
    {
        **VERSION, "n-vocab!": COUNT, "ctx-size!": COUNT, "embed-size!": COUNT, "pad-token!": INT32,
        "bos-token": INT32, "eos-token": INT32,
    }
)  # fmt: skip
PROMPT = Block({**VERSION, "prompt-template!": TEXTS})
HTP = Block(
    {
        **VERSION, "spill-fill-bufsize!": COUNT, "use-mmap!": FLAG, "pooled-output!": FLAG, "allow-async-init!": FLAG,
        "disable-kv-cache": FLAG, "batch-size": COUNT, "data-alignment-size": COUNT, "direct-io": FLAG,
    }
)  # fmt: skip
TRANSFORMER = Block({**VERSION, "n-logits": COUNT, "n-layer": COUNT, "n-embd": COUNT, "n-heads": COUNT})
POSITIONS = Block(
    {
        "type": Text(("rope",)), "rope-dim": INT32, "rope-theta": NUMBER,
        "rope-scaling": Block({"rope-type!": Text(("qwen2vl",))}),
    }
)  # fmt: skip
MODEL_KEYS: Keys = {
    **VERSION, "type!": Text(("binary", "library")), "positional-encoding": POSITIONS,
    "vision-param": Block({"height": NUMBER, "width": NUMBER}),
}  # fmt: skip
ENGINE = Block(
    {
        **VERSION, "backend!": backend_block(HTP, TRANSFORMER, gpu=False),
        "model!": model_block(MODEL_KEYS, PLAIN_LORA), "n-threads": COUNT, "mode": TEXT, "type": TEXT, "dlc-path": TEXT,
    }
)  # fmt: skip
#: A scale or an offset that is text names a file with one of each channel. Other keys are passed over.
TABLE = Block({**LUT, "quant-param": Block({"scale": Either(NUMBER, TEXT), "offset": Either(NUMBER, TEXT)}, open=True)})
_KEYS: Keys = {
    **VERSION, "context": CONTEXT, "tokenizer": TOKENIZER, "engine": ENGINE, "prompt": PROMPT, "truncate-input": FLAG,
    "lut": TABLE, "type": TEXT, "debug": DEBUG, "dlc-path": TEXT,
}  # fmt: skip


def _whole(embedding: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """Without a type that says otherwise, an embedding is a text encoder with all its parts."""
    if embedding.get("type") in ("image-encoder", "lut-encoder"):
        return
    for name in ("context", "tokenizer", "engine"):
        if name not in embedding:
            yield Problem(place, f"lacks {name!r}: add it")


def _text(node: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """A node of text has a tokenizer, and an engine or, with the type lut, a table."""
    kind, table = node.get("type"), node.get("lut", {})
    for name in {"lut": ("tokenizer", "lut"), "image-encoder": ("engine",)}.get(str(kind), ("tokenizer", "engine")):
        if name not in node:
            yield Problem(place, f"lacks {name!r}: add it")
    if kind == "lut" and isinstance(table, dict) and "lut-path" not in table:
        yield Problem((*place, "lut"), "lacks 'lut-path': name the table's file")


def _generator(dialog: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """A node is made as soon as it is read, so what a dialog stumbles over later stops it."""
    if next(DIALOG.problems(dialog, place), None) is None:
        yield from stumbles(dialog, place)


def _seen(engine: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """An image's size is whole, and its positions have their pairs."""
    model = engine.get("model")
    for name, needed in (("positional-encoding", ("rope-dim",)), ("vision-param", ("height", "width"))):
        block = model.get(name) if isinstance(model, dict) else None
        for key in needed:
            if isinstance(block, dict) and key not in block:
                yield Problem((*place, "model", name), f"lacks {key!r}: add it")


def _image(node: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """A node of images has an engine."""
    if "engine" not in node:
        yield Problem(place, "lacks 'engine': add it")


EMBEDDING = Block(_KEYS, rules=[_whole])
_TEXT = Block({**_KEYS, "type": Text(("lut", "image-encoder"))}, rules=[_text])
#: What is about text only is not looked at where images are encoded.
_IMAGE_ENGINE = ENGINE.changed(
    {
        "backend!": backend_block(
            HTP.changed({"pooled-output": Anything(), "disable-kv-cache": Anything()}), TRANSFORMER, gpu=False
        )
    },
    rules=[_seen],
)
NODES: Mapping[str, Block] = {
    "text-generator": DIALOG.changed(rules=[*DIALOG.rules, _generator]),
    "text-encoder": _TEXT,
    "lut-encoder": _TEXT,
    "image-encoder": Block({**_KEYS, "engine": _IMAGE_ENGINE}, rules=[_image]),
}
