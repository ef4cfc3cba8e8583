"""The table of Genie's configurations: every block with its keys, and what the library takes in them (API 1.21).

Found by asking the library: tests compare what this table says with the verdicts of the real one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgewright.genie.document import Place
from edgewright.genie.schema import (
    FLOAT32,
    Anything,
    Block,
    Choice,
    Either,
    Exactly,
    Flag,
    Integer,
    Items,
    Keys,
    Number,
    Problem,
    Text,
    signed,
)

VERSION: Keys = {"version!": Exactly(1)}
INT, COUNT, POSITIVE = Integer(), Integer(0), Integer(1)
INT32, UINT32 = Integer(-(1 << 31), (1 << 31) - 1), Integer(0, (1 << 32) - 1)
FLAG, TEXT, TEXTS, NUMBER = Flag(), Text(), Items(Text()), Number()
FLOAT = Number(-FLOAT32, FLOAT32)

#: Dialogs of two engines, and the engines' roles.
ROLES = {"spd": ("draft", "target"), "eaglet": ("draft", "target"), "kv-share": ("primary", "secondary")}


def paired_engines(dialog: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """One engine, or two with their roles, as the dialog's type wants."""
    kind, engine, where = dialog.get("type"), dialog.get("engine"), (*place, "engine")
    if not isinstance(kind, str) or not isinstance(engine, dict | list):
        return
    roles = ROLES.get(kind)
    if roles is None:
        if isinstance(engine, list):
            yield Problem(where, f"is an array: a dialog of the type {kind!r} has one engine, give an object")
        elif "role" in engine:
            yield Problem((*where, "role"), f"does not go with the type {kind!r}, which has one engine: take it out")
        return
    wanted = " and ".join(roles)
    found = [one.get("role") for one in engine if isinstance(one, dict)] if isinstance(engine, list) else []
    if len(found) != 2 or set(map(str, found)) != set(roles):
        yield Problem(where, f"must be two engines with the roles {wanted} for the type {kind!r}: give both")


def one_rotation(engine: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """The rotation of positions is said once: in the model, or the old way in the backend."""
    backend, model = engine.get("backend"), engine.get("model")
    htp = backend.get("QnnHtp") if isinstance(backend, dict) else None
    if isinstance(model, dict) and "positional-encoding" in model and isinstance(htp, dict):
        for name in ("pos-id-dim", "rope-theta"):
            if name in htp:
                yield Problem(
                    (*place, "backend", "QnnHtp", name), "says again what model.positional-encoding says: take one out"
                )


def shared_engine(htp: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """A shared engine is initialised beside others."""
    if htp.get("shared-engine") is True and htp.get("allow-async-init") is not True:
        yield Problem((*place, "shared-engine"), "needs allow-async-init: set that to true")


def lazy_switching(htp: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """A lazy policy has graphs to switch."""
    if htp.get("graph-switching-lora-policy") == "lazy" and htp.get("enable-graph-switching") is not True:
        yield Problem((*place, "graph-switching-lora-policy"), "is lazy, which needs enable-graph-switching: true")


def adapters(lora: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """Version 1 adapters are files; later ones are sections of the binaries."""
    old, found = lora.get("lora-version", 2) == 1, lora.get("adapters")
    for index, adapter in enumerate(found if isinstance(found, list) else ()):
        where = (*place, "adapters", index)
        if not isinstance(adapter, dict):
            continue
        if old and "path" not in adapter:
            yield Problem(where, "lacks 'path', which lora-version 1 needs: add it")
        if not old and "path" in adapter:
            yield Problem((*where, "path"), "goes with lora-version 1 only: take it out, or set the version")
        if not old and not {"alphas", "bin-sections"} & adapter.keys():
            yield Problem(where, "has neither 'alphas' nor 'bin-sections': add one")


def branches(ssd: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """A branch per forecast token, at most; a threshold with streams to choose from."""
    count, found = ssd.get("forecast-token-count"), ssd.get("branches")
    # The library keeps the count as uint32.
    if isinstance(count, int) and isinstance(found, list) and len(found) > count % (1 << 32):
        yield Problem((*place, "branches"), f"has {len(found)} entries, more than forecast-token-count: take some out")
    threshold, streams = ssd.get("p-threshold", 0), ssd.get("n-streams", 1)
    if not isinstance(threshold, int | float) or not isinstance(streams, int):
        return
    if (signed(threshold) if isinstance(threshold, int) else threshold) > 0 and signed(streams) <= 1:
        yield Problem((*place, "p-threshold"), "is above 0, which needs n-streams above 1: set both")


TOKENIZER = Block({**VERSION, "path!": TEXT})
GRAMMAR = Block({"backend": Text(("xgrammar",)), "type": Text(("json-schema", "regex", "ebnf")), "file": TEXT})
CONTEXT = Block(
    {
        **VERSION, "size!": COUNT, "n-vocab!": COUNT, "bos-token!": INT32, "eos-token!": Either(INT32, Items(INT32, 1)),
        "eot-token": INT32, "pad-token": INT32, "draft-n-vocab": COUNT, "n-embd": COUNT, "grammar": GRAMMAR,
    }
)  # fmt: skip
SAMPLER = Block(
    {
        **VERSION, "type": Text(("basic", "custom")), "seed": INT32, "temp": Number(0, FLOAT32), "top-k": UINT32,
        "top-p": Number(0, 1), "greedy": FLAG, "callback-name": TEXT,
        "token-penalty": Block(
            {
                **VERSION, "penalize-last-n": Integer(0, (1 << 31) - 1), "repetition-penalty": FLOAT,
                "presence-penalty": FLOAT, "frequency-penalty": FLOAT,
            }
        ),
    },
    choice=Choice("type", {"basic": "seed temp top-k top-p greedy", "custom": "callback-name!"}, "basic"),
)  # fmt: skip
#: A scale or an offset may be a string; the library takes it and looks at it later.
QUANT_PARAM = Block({"scale!": Either(NUMBER, TEXT), "offset!": Either(NUMBER, TEXT)})
LUT: Keys = {
    **VERSION, "size!": COUNT, "lut-path": TEXT,
    "datatype": Text(("float32", "native", "ufixed8", "ufixed16", "sfixed8", "sfixed16")), "quant-param": QUANT_PARAM,
}  # fmt: skip
EMBEDDING = Block(
    {**LUT, "type": Text(("lut", "callback"))},
    choice=Choice("type", {"lut": "lut-path!", "callback": ""}, "callback"),
)
DEBUG = Block({"path": TEXT, "dump-tensors": FLAG, "dump-specs": FLAG, "dump-outputs": FLAG})

KEYDIFF = Block({**VERSION, "scoring-network!": TEXT, "update-frequency!": INT32}, open=True)
LONGCONTEXT = Block(
    {
        **VERSION, "type!": Text(("keydiff", "sliding-window")), "reserved-tokens": INT32, "keydiff": KEYDIFF,
        "sliding-window": Block({**VERSION, "window-size!": INT32}),
    }
)  # fmt: skip
CACHE_GROUP = Block(
    {
        **VERSION, "prefix!": Text(filled=True), "longcontext": LONGCONTEXT, "attention-mask-tensor-name": TEXT,
        "cache-index-tensor-name": TEXT, "kv-dim": INT,
    }
)  # fmt: skip

ADAPTER = Block({**VERSION, "name!": TEXT, "alphas": TEXTS, "bin-sections": TEXTS, "path": TEXT})
#: The LoRA of a standalone engine and of an embedding.
PLAIN_LORA = Block(
    {**VERSION, "adapters!": Items(ADAPTER), "alpha-tensor-name": TEXT, "lora-version": Integer(1, 3)}, rules=[adapters]
)
LORA = PLAIN_LORA.changed(
    {
        "adapters!": Items(ADAPTER.changed({"adapter-order": TEXTS})), "adapter-order": TEXTS,
        "groups": Items(Block({**VERSION, "name!": TEXT, "members!": TEXTS, "quant-bin-sections!": TEXTS})),
    }
)  # fmt: skip

ROPE_TYPES = ("default", "llama3", "longrope", "linear", "proportional", "qwen2vl-mrope", "qwen3vl-mrope")
ROPE_SCALING = Block(
    {
        "rope-type": Text(ROPE_TYPES),
        "factor": NUMBER, "low-freq-factor": NUMBER, "high-freq-factor": NUMBER,
        "original-max-position-embeddings": NUMBER, "short-factor": Items(Anything()), "long-factor": Items(Anything()),
        "beta-fast": NUMBER, "beta-slow": NUMBER, "partial-rotary-factor": NUMBER, "mrope-section": Items(Anything()),
        "spatial-merge-size": NUMBER, "time-step": NUMBER,
    }
)  # fmt: skip
POSITIONS = Block(
    {
        "type": Text(("rope", "absolute", "alibi")), "rope-dim": INT32, "rope-theta": NUMBER,
        "rope-scaling": ROPE_SCALING,
    }
)  # fmt: skip
#: The old way of a model's positions, and those of the parts of a model by prefix.
MODEL_KEYS: Keys = {
    **VERSION, "type!": Text(("binary", "library")), "draft-token-map": TEXT,
    "positional-encoding": Either(POSITIONS, Items(POSITIONS.changed({"prefix": TEXT}), 1)),
}  # fmt: skip
BY_MODEL = Choice("type", {"binary": "binary!", "library": "library!"})


def model_block(keys: Keys, lora: Block) -> Block:
    """Return a model's block with a LoRA of some form."""
    return Block(
        {
            **keys,
            "binary": Block({**VERSION, "ctx-bins!": TEXTS, "lora": lora}),
            "library": Block({**VERSION, "model-bin!": TEXT, "lora": lora}),
        },
        choice=BY_MODEL,
    )


HTP = Block(
    {
        **VERSION, "spill-fill-bufsize!": COUNT, "mmap-budget!": COUNT, "use-mmap!": FLAG, "cpu-mask!": TEXT,
        "poll!": FLAG, "kv-dim": INT32, "pos-id-dim": INT, "rope-theta": NUMBER, "batch-size": COUNT,
        "data-alignment-size": COUNT, "direct-io": FLAG, "kv-update-method": TEXT, "allow-async-init": FLAG,
        "enable-graph-switching": FLAG, "graph-switching-lora-policy": Text(("lazy", "eager")),
        "skip-lora-validation": FLAG, "shared-engine": FLAG,
    },
    rules=[shared_engine, lazy_switching],
)  # fmt: skip
TRANSFORMER = Block(
    {
        **VERSION, "use-mmap": FLAG, "kv-quantization": FLAG, "n-logits": COUNT, "n-layer": COUNT, "n-embd": COUNT,
        "n-heads": COUNT, "n-kv-heads": COUNT, "model-input": TEXT, "shared-engine": FLAG,
    }
)  # fmt: skip
BY_BACKEND = {"QnnHtp": "QnnHtp!", "QnnGenAiTransformer": "QnnGenAiTransformer!"}


def backend_block(htp: Block, transformer: Block, *, gpu: bool) -> Block:
    """Return a backend's block with HTP and CPU parts of some form."""
    kinds = {**BY_BACKEND, **({"QnnGpu": "QnnGpu"} if gpu else {})}
    return Block(
        {
            **VERSION, "type!": Text(tuple(kinds)), "extensions": Either(TEXT, TEXTS), "QnnHtp": htp,
            "QnnGenAiTransformer": transformer, **({"QnnGpu": Block(VERSION)} if gpu else {}),
        },
        choice=Choice("type", kinds),
    )  # fmt: skip


ENGINE = Block(
    {
        **VERSION, "n-threads!": COUNT, "backend!": backend_block(HTP, TRANSFORMER, gpu=True),
        "model!": model_block(MODEL_KEYS, LORA), "type": TEXT, "longcontext": LONGCONTEXT,
        "role": Text(("draft", "target", "primary", "secondary")), "cache-groups": Items(CACHE_GROUP, 1),
    },
    rules=[one_rotation],
)  # fmt: skip
_OWN_HTP = HTP.changed(without="data-alignment-size direct-io kv-update-method", rules=[lazy_switching])
STANDALONE_ENGINE = Block(
    {
        **VERSION, "context!": CONTEXT.changed(without="grammar"), "embedding": EMBEDDING, "debug": DEBUG,
        "engine!": ENGINE.changed(
            {
                "backend!": backend_block(_OWN_HTP, TRANSFORMER, gpu=True),
                "model!": model_block(MODEL_KEYS, PLAIN_LORA),
            },
            without="type cache-groups",
        ),
    }
)  # fmt: skip

SSD = Block(
    {
        **VERSION, "ssd-version!": INT, "forecast-token-count!": COUNT, "branches!": Items(INT),
        "forecast-prefix!": INT, "forecast-prefix-name!": TEXT, "branch-mode": Text(("top-1", "all-expand")),
        "n-streams": INT, "p-threshold": NUMBER,
    },
    rules=[branches],
)  # fmt: skip
LADE = Block(
    {
        **VERSION, "update-mode": Text(("FWD_MAX_HIT", "FWD_LEVEL", "ALWAYS_FWD_ONE")), "window": INT, "ngram": INT,
        "gcap": INT,
    }
)  # fmt: skip
EAGLET = Block(
    {
        **VERSION, "eaglet-version!": INT, "draft-len!": POSITIVE, "n-branches!": POSITIVE,
        "max-tokens-target-can-evaluate!": POSITIVE, "draft-kv-cache!": FLAG,
    }
)  # fmt: skip
BY_TYPE = {
    "basic": "", "ssd-q1": "ssd-q1!", "lade": "lade", "spd": "spd!", "multistream": "multistream!",
    "eaglet": "eaglet!", "kv-share": "kv-share",
}  # fmt: skip
DIALOG = Block(
    {
        **VERSION, "type!": Text(tuple(BY_TYPE)), "context!": CONTEXT, "tokenizer!": TOKENIZER,
        "engine!": Either(ENGINE, Items(ENGINE)), "sampler": SAMPLER, "embedding": EMBEDDING,
        "perlayer-embedding": EMBEDDING, "stop-sequence": TEXTS, "max-num-tokens": COUNT, "debug": DEBUG,
        "accumulator-size": Anything(), "ssd-q1": SSD, "lade": LADE, "spd": Block({**VERSION, "draft-len!": INT}),
        "multistream": Block({**VERSION, "n-streams!": INT, "p-threshold": NUMBER}), "eaglet": EAGLET,
        "kv-share": Block({"enable-in-memory-kv-share": FLAG}),
    },
    choice=Choice("type", BY_TYPE),
    rules=[paired_engines],
)  # fmt: skip
