"""What the tests of the quantizer share: small checkpoints, recipes of a few lines, samples, interrupted runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from conftest import TEXT_GOLDENS
from edgewright.build.key import source_record
from edgewright.calibration import Samples
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.graph import Stage
from edgewright.models import build_llm
from edgewright.progress import SILENT, Advance, Progress
from edgewright.quant.recipe import Recipe
from edgewright.quant.recipe_file import parse_recipe
from edgewright.quantizer import quantize, write_folder
from edgewright.quantizer.driver import Quantized

INT4 = "body: {format: int4, algorithm: gptq}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
AWQ = INT4.replace("gptq", "awq")


def checkpoint_of(case: str) -> Checkpoint:
    """Open a golden checkpoint."""
    return open_checkpoint(TEXT_GOLDENS / case)


def stage_of(case: str) -> Stage:
    """Build the float stage of a golden."""
    return build_llm(checkpoint_of(case), max_context=64)


def recipe_of(text: str) -> Recipe:
    """Parse a recipe; the file is called r.yaml in messages."""
    return parse_recipe(text, "r.yaml")


def samples_of(checkpoint: Checkpoint, count: int = 6, length: int = 24, seed: int = 0) -> Samples:
    """Return random sequences of a model's tokens, of uneven lengths."""
    vocab = build_llm(checkpoint, max_context=8).contract.outputs[0].shape[-1]
    assert isinstance(vocab, int)
    rng = np.random.default_rng(seed)
    rows = tuple(rng.integers(0, vocab, length - index % 3) for index in range(count))
    return Samples(rows, {"seed": seed, "count": count})


def run(
    checkpoint: Checkpoint,
    recipe: str | Recipe,
    samples: Samples | None,
    *,
    progress: Progress = SILENT,
    threads: int | None = None,
) -> Quantized:
    """Quantize a checkpoint."""
    parsed = recipe_of(recipe) if isinstance(recipe, str) else recipe
    return quantize(checkpoint, source_record(checkpoint), parsed, samples, progress=progress, threads=threads)


def write(folder: Path, checkpoint: Checkpoint, recipe: str | Recipe, samples: Samples | None, done: Quantized) -> Path:
    """Write what a run made, and remove its work."""
    parsed = recipe_of(recipe) if isinstance(recipe, str) else recipe
    folder.mkdir(parents=True)
    record = {} if samples is None else samples.record
    write_folder(folder, checkpoint, source_record(checkpoint), parsed, done, record)
    done.work.remove()
    return folder


def digest(folder: Path) -> dict[str, str]:
    """Return the digest of every file of a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


class StopError(Exception):
    """What a test interrupts a run with."""


class Watch(Progress):
    """Remembers the steps, and stops at the step of a title."""

    def __init__(self, stop_at: str | None = None, error: type[BaseException] = StopError) -> None:
        self.steps: list[str] = []
        self._stop_at, self._error = stop_at, error

    @contextmanager
    def step(self, title: str, total: int = 0) -> Iterator[Advance]:
        self.steps.append(title)
        told = 0

        def advance(amount: int) -> None:
            nonlocal told
            told += amount
            if title == self._stop_at and told * 2 >= total:
                raise self._error

        yield advance
        assert told <= total, (title, told, total)
