"""Genie configurations to ask the library about: valid ones of every kind, and the same when they are spoilt."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Place = tuple[str | int, ...]
#: Values of every type, and numbers at the edges of int32, uint32, int64, float32.
VALUES: tuple[Any, ...] = (
    True, False, 0, 1, -1, 2, 5, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 0.0, 0.5, -0.5,
    1.0, 1.5, 1e39, 1e300, "", "x", "basic", "lut", None, {}, {"version": 1}, {"version": 2}, {"x": 1}, [], [1], ["x"],
    [{}],
)  # fmt: skip
#: Whole texts that are not what they should be.
TEXTS = (
    "", " ", "{", "{}", "[]", "null", "3", '"x"', "{} x", '{"a": 1,}', "// x\n{}", '{"sampler": {"version": 01}}',
    '{"sampler": {"version": 1, "temp": NaN}}', '{"sampler": {"version": 1, "temp": 1e999}}',
    '{"sampler": {"version": 1, "temp": -0.0}}', '{"sampler": {"version": 1}}', '\ufeff{"sampler": {"version": 1}}',
    '{"sampler": {"version": 2, "version": 1}}', '{"sampler": {"version": 1, "version": 2}}',
    '{"sampler": {"version": 1}, "sampler": {"version": 1}}', '{"sampler": {"version": 1, "seed": 1e3}}',
    '{"sampler": {"version": 1, "seed": 18446744073709551616}}', '{"sampler": {"version": 1, "seed": -0}}',
    '{"sampler": {"version": 1, "type": "custom", "callback-name": "\\ud800"}}',
    '{"sampler": {"version": 1, "type": "custom", "callback-name": "\\ud83d\\ude00"}}',
    '{"sampler": {"version": 1, "type": "custom", "callback-name": "a\tb"}}',
    '{"sampler": {"version": 1, "type": "custom", "callback-name": "\\x"}}',
    '{"sampler": {"version": 1}, "standalone-sampler": {"version": 1}}', '{"Sampler": {"version": 1}}',
    '{"profile": {"version": 1}}', '{"profile": {"version": 1}, "profile": {"version": 1}}',
    '{"text-encoder": {"version": 1, "x": 1}, "text-encoder": {"version": 1}}', '{"a": 1, "image-encoder": {}}',
    '{"image-encoder": {"version": 1}, "zoo": 1}',
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A text to be asked about as a kind of configuration."""

    kind: str
    text: str


def _htp(**more: Any) -> dict[str, Any]:
    block = {
        "version": 1, "use-mmap": True, "spill-fill-bufsize": 0, "mmap-budget": 0, "poll": True, "cpu-mask": "0xe0",
        "kv-dim": 128, **more,
    }  # fmt: skip
    return {"version": 1, "type": "QnnHtp", "QnnHtp": block, "extensions": "htp.json"}


_OLD_ROPE = {"pos-id-dim": 64, "rope-theta": 10000}
_CONTEXT = {"version": 1, "size": 4096, "n-vocab": 1000, "bos-token": 1, "eos-token": 2}
_TOKENIZER = {"version": 1, "path": "tokenizer.json"}
_SAMPLER = {"version": 1, "seed": 42, "temp": 0.8, "top-k": 40, "top-p": 0.95}
_LUT = {
    "version": 1, "size": 64, "lut-path": "lut.raw", "datatype": "ufixed16",
    "quant-param": {"scale": 0.001, "offset": -3},
}  # fmt: skip
_LIBRARY = {"version": 1, "type": "library", "library": {"version": 1, "model-bin": "m.bin"}}
_CPU = {
    "version": 1, "type": "QnnGenAiTransformer",
    "QnnGenAiTransformer": {"version": 1, "use-mmap": False, "n-layer": 2, "n-embd": 64, "n-heads": 4, "n-kv-heads": 2},
}  # fmt: skip
_ENCODER_HTP = {
    "version": 1, "type": "QnnHtp", "extensions": ["htp.json"],
    "QnnHtp": {
        "version": 1, "use-mmap": True, "spill-fill-bufsize": 0, "pooled-output": True, "allow-async-init": False,
        "disable-kv-cache": True,
    },
}  # fmt: skip
_ENCODER_CONTEXT = {"version": 1, "n-vocab": 100, "ctx-size": 512, "embed-size": 64, "pad-token": 0}


def _binary(*, lora: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "version": 1, "type": "binary",
        "binary": {"version": 1, "ctx-bins": ["a.bin", "b.bin"], **({"lora": lora} if lora else {})}, **more,
    }  # fmt: skip


def _engine(**more: Any) -> dict[str, Any]:
    return {"version": 1, "n-threads": 3, "backend": _htp(**_OLD_ROPE), "model": _binary(), **more}


def _dialog(kind: str = "basic", engine: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "version": 1, "type": kind, "context": _CONTEXT, "sampler": _SAMPLER, "tokenizer": _TOKENIZER,
        "engine": engine or _engine(), **more,
    }  # fmt: skip


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    scaling = {"rope-type": kind, "factor": 8.0, **more}
    positions = {"type": "rope", "rope-dim": 64, "rope-theta": 10000, "rope-scaling": scaling}
    return _engine(backend=_htp(), model=_binary(**{"positional-encoding": positions}))


def _lora(version: int | None, adapter: dict[str, Any], **more: Any) -> dict[str, Any]:
    lora = {"version": 1, "adapters": [{"version": 1, "name": "x", **adapter}], **more}
    return _engine(model=_binary(lora=lora if version is None else {**lora, "lora-version": version}))


_KEYDIFF = {
    "version": 1, "type": "keydiff", "reserved-tokens": 8,
    "keydiff": {"version": 1, "scoring-network": "s.bin", "update-frequency": 16},
}  # fmt: skip
_SLIDING = {"version": 1, "type": "sliding-window", "sliding-window": {"version": 1, "window-size": 1024}}
_DRAFTED = [_engine(role="draft"), _engine(role="target")]
_SHARED = {
    "allow-async-init": True, "shared-engine": True, "data-alignment-size": 4, "enable-graph-switching": True,
    "graph-switching-lora-policy": "lazy", "skip-lora-validation": True, "kv-update-method": "x", "batch-size": 1,
    "direct-io": True,
}  # fmt: skip
_SSD = {
    "version": 1, "ssd-version": 1, "forecast-token-count": 4, "branches": [3, 2], "forecast-prefix": 16,
    "forecast-prefix-name": "f", "branch-mode": "top-1", "n-streams": 2, "p-threshold": 0.5,
}  # fmt: skip
_EAGLET = {
    "version": 1, "eaglet-version": 1, "draft-len": 4, "n-branches": 2, "max-tokens-target-can-evaluate": 16,
    "draft-kv-cache": True,
}  # fmt: skip
_PENALTIES = {
    "version": 1, "penalize-last-n": 64, "repetition-penalty": 1.1, "presence-penalty": 0.1, "frequency-penalty": 0.1,
}  # fmt: skip
_GROUPS = [
    {"version": 1, "prefix": "past_", "attention-mask-tensor-name": "m", "cache-index-tensor-name": "i", "kv-dim": 64,
     "longcontext": _SLIDING},
    {"version": 1, "prefix": "swa_"},
]  # fmt: skip
_SECONDARY = {"version": 1, "n-threads": 3, "backend": _CPU, "model": _LIBRARY, "role": "secondary"}
_ENCODER = {"version": 1, "n-threads": 3, "backend": _ENCODER_HTP, "model": _binary()}
_SEEING = {
    **_ENCODER, "mode": "image",
    "model": _binary(**{"vision-param": {"height": 14, "width": 24}, "positional-encoding": {
        "type": "rope", "rope-dim": 3, "rope-theta": 1.5, "rope-scaling": {"rope-type": "qwen2vl"}}}),
}  # fmt: skip

_DIALOGS = {
    "basic": _dialog(),
    "cpu": _dialog(engine={"version": 1, "n-threads": 3, "backend": _CPU, "model": _LIBRARY}),
    "gpu": _dialog(engine={**_engine(), "backend": {"version": 1, "type": "QnnGpu", "QnnGpu": {"version": 1}}}),
    "llama3": _dialog(
        engine=_rope(
            "llama3",
            **{"low-freq-factor": 1.0, "high-freq-factor": 4.0, "original-max-position-embeddings": 8192},
        )
    ),
    "longrope": _dialog(
        engine=_rope(
            "longrope", **{"short-factor": [1.0], "long-factor": [2.0], "original-max-position-embeddings": 4096}
        )
    ),
    "mrope": _dialog(
        engine=_engine(
            backend=_htp(),
            model=_binary(
                **{"positional-encoding": [{"prefix": "a", "rope-scaling": {
                    "rope-type": "qwen3vl-mrope", "spatial-merge-size": 2, "mrope-section": [1], "time-step": 1}}]}
            ),
        )
    ),
    "lora1": _dialog(engine=_lora(1, {"path": "p"})),
    "lora2": _dialog(engine=_lora(None, {"alphas": ["a"], "bin-sections": ["s"]}, **{"alpha-tensor-name": "t"})),
    "lora3": _dialog(
        engine=_lora(
            3, {"bin-sections": ["s"], "adapter-order": ["x"]}, **{
                "adapter-order": ["x"],
                "groups": [{"version": 1, "name": "g", "members": ["x"], "quant-bin-sections": ["q"]}]},
        )
    ),
    "lut": _dialog(embedding={**_LUT, "type": "lut"}),
    "callback": _dialog(
        **{"embedding": {"version": 1, "size": 64, "type": "callback", "datatype": "float32"},
           "perlayer-embedding": {**_LUT, "type": "lut"}}
    ),
    "custom": _dialog(sampler={"version": 1, "type": "custom", "callback-name": "f"}),
    "penalties": _dialog(sampler={"version": 1, "type": "basic", "greedy": False, "token-penalty": _PENALTIES}),
    "more": _dialog(
        context={
            **_CONTEXT, "eos-token": [1, 2], "eot-token": 3, "pad-token": 4, "n-embd": 64, "draft-n-vocab": 32,
            "grammar": {"backend": "xgrammar", "type": "json-schema", "file": "f"}},
        **{"stop-sequence": ["x"], "max-num-tokens": 5, "accumulator-size": 100, "debug": {
            "path": "d", "dump-tensors": True, "dump-specs": True, "dump-outputs": True}},
    ),
    "keydiff": _dialog(engine=_engine(longcontext=_KEYDIFF)),
    "sliding": _dialog(engine=_engine(longcontext=_SLIDING, type="x")),
    "groups": _dialog(engine=_engine(**{"cache-groups": _GROUPS})),
    "shared": _dialog(engine=_engine(backend=_htp(**_SHARED))),
    "ssd": _dialog("ssd-q1", **{"ssd-q1": _SSD}),
    "lade": _dialog(
        "lade", lade={"version": 1, "update-mode": "FWD_MAX_HIT", "window": 8, "ngram": 5, "gcap": 8}
    ),
    "multistream": _dialog("multistream", multistream={"version": 1, "n-streams": 4, "p-threshold": 0.1}),
    "spd": _dialog("spd", _DRAFTED, spd={"version": 1, "draft-len": 4}),
    "eaglet": _dialog("eaglet", _DRAFTED, eaglet=_EAGLET),
    "kv-share": _dialog(
        "kv-share", [_engine(role="primary"), _SECONDARY], **{"kv-share": {"enable-in-memory-kv-share": True}}
    ),
}  # fmt: skip
_TEXT_ENCODER = {
    "version": 1, "context": {**_ENCODER_CONTEXT, "bos-token": 1, "eos-token": 2}, "tokenizer": _TOKENIZER,
    "truncate-input": True, "prompt": {"version": 1, "prompt-template": ["a", "b"]}, "engine": _ENCODER,
}  # fmt: skip
_PLAIN_CPU = {
    "version": 1, "type": "QnnGenAiTransformer",
    "QnnGenAiTransformer": {"version": 1, "n-layer": 2, "n-embd": 64, "n-heads": 4, "n-logits": 1},
}  # fmt: skip
_OWN_ENGINE = {
    **_rope("linear"), "role": "draft", "longcontext": _KEYDIFF,
}  # fmt: skip
#: Valid configurations by kind and name.
BASES: dict[str, dict[str, dict[str, Any]]] = {
    "dialog": {name: {"dialog": block} for name, block in _DIALOGS.items()},
    "embedding": {
        "text": {"embedding": _TEXT_ENCODER},
        "all": {"embedding": {**_TEXT_ENCODER, "type": "text-encoder", "lut": _LUT, "debug": {"path": "d"}}},
        "cpu": {"embedding": {**_TEXT_ENCODER, "engine": {"version": 1, "backend": _PLAIN_CPU, "model": _LIBRARY}}},
        "image": {"embedding": {"version": 1, "type": "image-encoder", "engine": _SEEING}},
    },
    "engine": {
        "plain": {"standalone-engine": {"version": 1, "context": _CONTEXT, "engine": _engine()}},
        "all": {
            "standalone-engine": {
                "version": 1, "context": _CONTEXT, "embedding": {**_LUT, "type": "lut"}, "debug": {"path": "x"},
                "engine": _OWN_ENGINE}
        },
        "lora": {
            "standalone-engine": {
                "version": 1, "context": _CONTEXT, "engine": _lora(2, {"alphas": ["a"]}, **{"alpha-tensor-name": "t"})}
        },
        "cpu": {
            "standalone-engine": {
                "version": 1, "context": _CONTEXT,
                "engine": {"version": 1, "n-threads": 3, "backend": _CPU, "model": _LIBRARY}}
        },
    },
    "sampler": {
        "basic": {"sampler": _SAMPLER},
        "custom": {"sampler": {"version": 1, "type": "custom", "callback-name": "f"}},
        "penalties": {"sampler": {"version": 1, "token-penalty": _PENALTIES}},
        "standalone": {"standalone-sampler": {"version": 1, "sampler": _SAMPLER, "context": _CONTEXT}},
    },
    "profile": {"trace": {"profile": {"version": 1, "trace": {"version": 1, "enable": True}}}},
    "node": {
        "generator": {"text-generator": _dialog()},
        "encoder": {"text-encoder": _TEXT_ENCODER},
        "table": {
            "lut-encoder": {
                "version": 1, "type": "lut", "tokenizer": _TOKENIZER, "context": _ENCODER_CONTEXT, "lut": _LUT}
        },
        "image": {"image-encoder": {"version": 1, "engine": _SEEING}},
    },
}  # fmt: skip


def cases(count: int, seed: int) -> list[Case]:
    """Return the valid configurations, odd texts, and about `count` spoilt ones, as many of each valid one."""
    rng = random.Random(seed)
    found = {Case(kind, text): None for text in TEXTS for kind in BASES}
    bases = [(kind, base) for kind, named in BASES.items() for base in named.values()]
    grafts = [_at(base, place) for _, base in bases for place in _places(base) if place]
    keys = sorted(
        {str(part) for _, base in bases for place in _places(base) for part in place if isinstance(part, str)}
    )
    for kind, base in bases:
        found[Case(kind, json.dumps(base))] = None
        spoilt = list(_spoilt(base, keys, grafts, rng))
        for data in rng.sample(spoilt, min(len(spoilt), count // len(bases))):
            found[Case(kind, json.dumps(data))] = None
    return list(found)


def _spoilt(base: Any, keys: list[str], grafts: list[Any], rng: random.Random) -> Iterator[Any]:
    """Yield a configuration with a key less, another value, an unknown key, or a block from elsewhere."""
    for place in _places(base):
        if place:
            yield _changed(base, place, None, drop=True)
            yield from (_changed(base, place, value) for value in VALUES)
            yield _changed(base, place, rng.choice(grafts))
        block = _at(base, place)
        if isinstance(block, dict):
            yield _changed(base, (*place, "unknown"), 1)
            yield from (_changed(base, (*place, key), rng.choice(VALUES)) for key in rng.sample(keys, 8))
            yield from (_changed(base, (*place, rng.choice(keys)), rng.choice(grafts)) for _ in range(4))
        if isinstance(block, list):
            yield _changed(base, place, block * 2)


def _places(value: Any, place: Place = ()) -> Iterator[Place]:
    yield place
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, one in pairs:
        yield from _places(one, (*place, part))


def _at(value: Any, place: Place) -> Any:
    for part in place:
        value = value[part]
    return value


def _changed(base: Any, place: Place, value: Any, *, drop: bool = False) -> Any:
    data = copy.deepcopy(base)
    around = _at(data, place[:-1])
    if not place:
        return data
    if drop:
        del around[place[-1]]
    else:
        around[place[-1]] = copy.deepcopy(value)
    return data
