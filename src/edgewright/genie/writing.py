"""A dialog's configuration for a model: what the model is, and how it is to be run on the HTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgewright.genie.config import DATATYPES
from edgewright.genie.rope import Rope

#: Names of the files in a Genie folder; paths are looked up in the working directory.
CONFIG, EXTENSIONS, TOKENIZER, TABLE = (
    "genie_config.json", "htp_backend_ext_config.json", "tokenizer.json", "embedding_weights.raw",
)  # fmt: skip

#: What this package's types of codes are called there.
_THEIRS = {ours: theirs for theirs, ours in DATATYPES.items()}
#: Keys of a sampler that draws, what a generation config calls them, and what it means where it leaves them out.
_DRAWING = {"temp": ("temperature", 1.0), "top-k": ("top_k", 50), "top-p": ("top_p", 1.0)}


@dataclass(frozen=True)
class Table:
    """Where embeddings come from: a raw file of codes and its encoding, or, without `dtype`, the program's callback."""

    hidden: int
    dtype: str | None = None
    scale: float = 1.0
    offset: int = 0

    def block(self) -> dict[str, Any]:
        """Return the block `embedding`."""
        if self.dtype is None:
            return {"version": 1, "size": self.hidden, "type": "callback"}
        block = {
            "version": 1, "size": self.hidden, "type": "lut", "lut-path": TABLE, "datatype": _THEIRS[self.dtype],
        }  # fmt: skip
        quant = {} if self.dtype == "float32" else {"quant-param": {"scale": self.scale, "offset": self.offset}}
        return block | quant


@dataclass(frozen=True)
class Model:
    """A model's figures. `sampling` is a generation config's: temperature, top_k, top_p, repetition_penalty."""

    context: int
    vocab: int
    bos: int
    eos: tuple[int, ...]
    head_dim: int
    rope: Rope
    table: Table | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Running:
    """How it is run: context binaries in the order of the model's parts, threads, and the CPU's share of the work."""

    binaries: Sequence[str]
    threads: int = 3
    cpu_mask: str = "0xe0"
    poll: bool = True
    mmap: bool = True
    seed: int = 42


def dialog_config(model: Model, running: Running) -> dict[str, Any]:
    """Return the whole mapping of a basic dialog on the HTP."""
    in_backend, in_model = model.rope.keys()
    htp = {
        "version": 1, "use-mmap": running.mmap, "spill-fill-bufsize": 0, "mmap-budget": 0, "poll": running.poll,
        "cpu-mask": running.cpu_mask, "kv-dim": model.head_dim, **in_backend, "allow-async-init": False,
    }  # fmt: skip
    engine = {
        "version": 1,
        "n-threads": running.threads,
        "backend": {"version": 1, "type": "QnnHtp", "QnnHtp": htp, "extensions": EXTENSIONS},
        "model": {
            "version": 1,
            "type": "binary",
            "binary": {"version": 1, "ctx-bins": list(running.binaries)},
            **in_model,
        },
    }
    context = {
        "version": 1, "size": model.context, "n-vocab": model.vocab, "bos-token": model.bos,
        "eos-token": model.eos[0] if len(model.eos) == 1 else list(model.eos),
    }  # fmt: skip
    return {
        "dialog": {
            "version": 1,
            "type": "basic",
            "context": context,
            "sampler": sampler_block(model, running.seed),
            "tokenizer": {"version": 1, "path": TOKENIZER},
            **({"embedding": model.table.block()} if model.table else {}),
            "engine": engine,
        }
    }


def sampler_block(model: Model, seed: int) -> dict[str, Any]:
    """Return the block `sampler` for a generation config; greedy where it doesn't ask for drawing.

    The library draws greedily with a temperature of 0. What such a config leaves out has another default there than in
    the library, so it is written. The library's penalty looks back on so many tokens: all of a context.
    """
    wanted = {name: value for name, value in model.sampling.items() if value is not None}
    block: dict[str, Any] = {"version": 1, "seed": seed, "temp": 0.0}
    if wanted.get("do_sample") and wanted.get("temperature", 1.0) != 0:
        block |= {name: wanted.get(key, usual) for name, (key, usual) in _DRAWING.items()}
    penalty = wanted.get("repetition_penalty") or 1.0
    if penalty != 1.0:
        block["token-penalty"] = {"version": 1, "penalize-last-n": model.context, "repetition-penalty": penalty}
    return block
