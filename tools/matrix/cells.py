"""The cells of the matrix: one golden row, one scenario, right or refused.

Every scenario drives the engine the way a runtime does and compares with what transformers computed. A cell is
`Cell(error)`, the largest relative error or, for integer weights, the mean KL in nats; or `Cell(refused=...)` with the
sentence that refused it. Anything else is an exception, and a fault of ours.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgewright.bundle.settings import EngineSettings
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.dialects import LOWERINGS
from edgewright.errors import ConfigError, RecipeError, TruncationError
from edgewright.formats import IntFormat
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import Recipe
from edgewright.quant.recipe_file import load_recipe
from edgewright.runtime.engine import Engine
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.runtime.session import Session, unpadded
from edgewright.verify.metrics import distance

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "text"
#: Largest error of a float32 cell, relative to the reference's largest logit.
FLOAT32 = 1e-4
#: Largest error of float16 weights, and mean KL in nats of int8 and int4 weights, against the float32 reference.
BOUNDS = {"float16": 0.02, "int8": 0.03, "int4": 1.0}
#: Largest error between the engine and the portable graph over the same integer weights.
SAME_WEIGHTS = 1e-4


@dataclass(frozen=True)
class Cell:
    """`error` in the scenario's unit, or `refused`, the sentence; `limit` is what the error must not exceed."""

    error: float = 0.0
    limit: float = FLOAT32
    refused: str = ""

    @property
    def right(self) -> bool:
        """Whether the error is within its bound."""
        return not self.refused and self.error <= self.limit


@dataclass(frozen=True)
class Row:
    """A golden: its checkpoint, what the reference computed, and where its config changes something."""

    name: str
    checkpoint: Checkpoint
    expected: dict[str, np.ndarray]
    about: str

    @property
    def ids(self) -> np.ndarray:
        """The tokens, int64 `[n]`."""
        result: np.ndarray = self.expected["ids"][0]
        return result

    @property
    def logits(self) -> np.ndarray:
        """The reference's logits `[n, vocab]`."""
        return self.expected["logits"]


def names() -> list[str]:
    """Return the names of all rows."""
    return sorted(path.name for path in GOLDENS.iterdir() if (path / "case.json").is_file())


def read_row(name: str) -> Row:
    """Read a golden."""
    folder = GOLDENS / name
    with np.load(folder / "expected.npz") as data:
        about = json.loads((folder / "case.json").read_text(encoding="utf-8"))["about"]
        return Row(name, open_checkpoint(folder), dict(data), about)


@contextmanager
def engine_of(checkpoint: Checkpoint, dialect: str, recipe: Recipe) -> Iterator[Engine]:
    """Build, quantize, lower, write and load."""
    stage = build_llm(checkpoint)
    quantize_stage(stage, recipe)
    stage = LOWERINGS[dialect](stage)
    with tempfile.TemporaryDirectory() as folder:
        write_stage(stage, Path(folder))
        yield OnnxRuntimeEngine(Path(folder) / MODEL_FILE, stage.contract, EngineSettings(), threads=1)


def _relative(got: np.ndarray, wanted: np.ndarray) -> float:
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    assert np.isfinite(got).all()
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def _split_error(row: Row, engine: Engine, cuts: list[int], first_capacity: int = 256) -> float:
    """Feed the row's tokens cut at `cuts`; compare all logits that were computed at the reference's rope length."""
    session = Session(engine, first_capacity=first_capacity)
    n = len(row.ids)
    switch = engine.contract.rope_switch
    worst = 0.0
    for a, b in itertools.pairwise(sorted({0, *cuts, n})):
        got = session.append(row.ids[a:b], logits="last" if b - a == 1 else "all")
        if switch is None or (b > switch) == (n > switch):
            worst = max(worst, _relative(got, row.logits[a:b]))
    return worst


def prefill(row: Row, engine: Engine) -> float:
    """All tokens at once."""
    return _split_error(row, engine, [])


def chunked(row: Row, engine: Engine) -> float:
    """Several splits into chunks."""
    return max(_split_error(row, engine, cuts) for cuts in ([1, 8, 30], [16, 32, 48], [3, 5, 40, 63], [33]))


def decode(row: Row, engine: Engine) -> float:
    """Token by token from the first."""
    return _split_error(row, engine, list(range(1, len(row.ids))))


def boundaries(row: Row, engine: Engine) -> float:
    """Decode across every window, chunk, growth of the cache and rope boundary."""
    contract = engine.contract
    edges = {layer.window for layer in contract.kv if layer.window} | {16, 32}
    edges |= {contract.rope_switch} if contract.rope_switch else set()
    worst = 0.0
    for edge in sorted(edges):
        start, stop = max(1, edge - 2), edge + 3
        if stop < len(row.ids):
            worst = max(worst, _split_error(row, engine, list(range(start, stop)), first_capacity=min(16, edge)))
    return worst


def batch(row: Row, engine: Engine) -> float:
    """A batch of three with left padding: rows of different lengths, then decoded together."""
    ids, pads, wanted = (row.expected[key] for key in ("ids_b", "pad_b", "logits_p"))
    mask = np.arange(ids.shape[1]) >= pads[:, None]
    rows = unpadded(ids, mask)
    session = Session(engine, batch=len(rows))
    heads = session.append_rows([r[:-4] for r in rows], logits="all")
    tails = [session.append(np.stack([r[i : i + 1] for r in rows])) for i in range(-4, -1)]
    tails.append(session.append(np.stack([r[-1:] for r in rows])))
    worst = 0.0
    switch = engine.contract.rope_switch
    for index, (pad, head) in enumerate(zip(pads, heads, strict=True)):
        at = int(pad)
        for part in (head, *(tail[index] for tail in tails)):
            start, at = at, at + len(part)
            # The reference counts the longest row for all; compare what was computed at its rope length.
            if switch is None or (at - pad > switch) == (ids.shape[1] > switch):
                worst = max(worst, _relative(part, wanted[index, start:at]))
    together = Session(engine, batch=len(rows)).append(ids, logits="all")
    return max(worst, _relative(together, row.expected["logits_b"]))


def turns(row: Row, engine: Engine) -> float:
    """A turn, its end taken back, and a second turn."""
    session = Session(engine)
    n = len(row.ids)
    session.append(row.ids[:24], logits="none")
    for other in row.ids[::-1][:16]:
        session.append([int(other)])
    session.truncate(24)
    got = session.append(row.ids[24:], logits="all")
    switch = engine.contract.rope_switch
    assert switch is None or n > switch
    return _relative(got, row.logits[24:])


#: Scenarios with float32 weights, in the table's order.
SCENARIOS: dict[str, Callable[[Row, Engine], float]] = {
    "prefill": prefill,
    "chunked": chunked,
    "decode": decode,
    "boundaries": boundaries,
    "batch 3": batch,
    "two turns": turns,
}
COLUMNS = (*SCENARIOS, *BOUNDS)


def float_cells(row: Row, dialect: str = "onnxruntime") -> dict[str, Cell]:
    """Return the cells of the float32 scenarios; what only the runtime refuses is refused by name."""
    with engine_of(row.checkpoint, dialect, load_recipe("float32")) as engine:
        cells = {}
        for name, scenario in SCENARIOS.items():
            try:
                cells[name] = Cell(scenario(row, engine))
            except TruncationError as error:
                cells[name] = Cell(refused=str(error))
        return cells


def weight_cell(row: Row, kind: str) -> Cell:
    """Return the cell of a weight format: the engine against the reference and, for integers, the portable graph."""
    recipe = load_recipe(kind)
    n = len(row.ids)
    with engine_of(row.checkpoint, "onnxruntime", recipe) as engine:
        got = Session(engine).append(row.ids, logits="all")
    if kind == "float16":
        return Cell(_relative(got, row.logits), BOUNDS[kind])
    exact = _float_inputs(recipe)
    with engine_of(row.checkpoint, "onnxruntime", exact) as engine:
        fast = Session(engine).append(row.ids, logits="all")
    with engine_of(row.checkpoint, "portable", exact) as engine:
        plain = Session(engine, first_capacity=n).append(row.ids, logits="all")
    same = _relative(fast, plain)
    if same > SAME_WEIGHTS:
        return Cell(same, SAME_WEIGHTS)
    return Cell(distance(got, row.logits).kl, BOUNDS[kind])


def _float_inputs(recipe: Recipe) -> Recipe:
    """Return the recipe with kernels that don't round their inputs."""
    kept = {
        part: dataclasses.replace(fmt, int8_activations=False) if isinstance(fmt, IntFormat) else fmt
        for part in ("body", "lm_head", "embedding")
        for fmt in (getattr(recipe, part),)
    }
    return dataclasses.replace(recipe, **kept)


def cells_of(name: str) -> dict[str, Cell]:
    """Return all cells of a row; a checkpoint that is refused before export is refused in all of them."""
    row = read_row(name)
    try:
        build_llm(row.checkpoint)
    except ConfigError as error:
        return {column: Cell(refused=str(error)) for column in COLUMNS}
    cells = float_cells(row)
    for kind in BOUNDS:
        try:
            cells[kind] = weight_cell(row, kind)
        except (ConfigError, RecipeError) as error:
            cells[kind] = Cell(refused=str(error))
    return cells
