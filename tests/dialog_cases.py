"""Tiny bundles, raw files of embeddings in two encodings, and cases made of them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bench.case.spec import Case, DialogSpec, InputSpec, ModelSpec, RunSpec, SchedulerSpec
from edgewright.build.pipeline import deploy
from edgewright.runtime.encoding import EmbeddingFile, Encoding
from edgewright.runtime.llm import LLM
from edgewright.runtime.rawtable import write_raw
from edgewright.runtime.scheduling.timeline import Timeline

LLAMA = Path(__file__).parent / "goldens" / "text" / "llama"
#: About the range of the golden's table, in two types of different steps.
FINE = Encoding("uint16", 0.000105, -30393)
COARSE = Encoding("uint8", 0.0272, -118)


@dataclass(frozen=True)
class Files:
    """What cases are made of; not to be changed."""

    inside: Path
    outside: Path
    table: EmbeddingFile
    fine: EmbeddingFile
    coarse: EmbeddingFile
    ids: Path


def make_files(folder: Path) -> Files:
    """Write them into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = deploy(LLAMA, folder / "inside", recipe="float32", verify=False).path
    outside = deploy(LLAMA, folder / "outside", recipe="float32", verify=False, embeddings="outside").path
    llm = LLM.load(outside)
    rows = {
        "table": (FINE, np.concatenate(list(llm.embedding_blocks()))),
        "fine": (FINE, llm.embed(range(5, 45))),
        "coarse": (COARSE, llm.embed(range(60, 20, -1))),
    }
    written = {}
    for name, (encoding, values) in rows.items():
        write_raw(folder / f"{name}.bin", encoding, [values])
        written[name] = EmbeddingFile(folder / f"{name}.bin", encoding, True)
    (folder / "ids.txt").write_text(" ".join(map(str, range(1, 51))))
    return Files(inside, outside, written["table"], written["fine"], written["coarse"], folder / "ids.txt")


@functools.cache
def shared_files(base: Path) -> Files:
    """Write them once for all tests of a process, whose temporary folder `base` is."""
    return make_files(base / "dialogs")


def dialog(name: str, model: str, *, weight: float = 1, **values: Any) -> DialogSpec:
    """A dialog whose input fields stand among the others."""
    inputs = {key: values.pop(key) for key in ("prompt", "tokens_file", "embedding", "prompt_tokens") if key in values}
    values = {"timeline": Timeline.constant(weight), "ignore_eos": True, **values}
    return DialogSpec(name=name, model=model, input=InputSpec(**inputs), **values)


def mixed_case(files: Files, **run: Any) -> Case:
    """One dialog of token ids, two of embeddings in different encodings."""
    return Case(
        name="mixed",
        models=(
            ModelSpec(name="llm", bundle=files.inside),
            ModelSpec(name="vlm", bundle=files.outside, table=files.table),
        ),
        dialogs=(
            dialog("chat", "llm", weight=4, tokens_file=files.ids, max_tokens=24, iterations=2),
            dialog("fine", "vlm", weight=2, embedding=files.fine, max_tokens=12, iterations=2),
            dialog("coarse", "vlm", weight=1, embedding=files.coarse, max_tokens=6, iterations=2),
        ),
        scheduler=SchedulerSpec(prefill_chunk=16),
        run=RunSpec(**{"threads": 1, **run}),
    )
