"""What quantization cost a model: bundles and quantized checkpoints against the float model, on held-out text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from edgewright.build.llm import give_cache
from edgewright.bundle import MANIFEST, Manifest, check_files, read_manifest
from edgewright.calibration.data import fingerprint
from edgewright.calibration.documents import TextFile, read_texts, windows
from edgewright.calibration.model import text_side
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.errors import BundleError, CalibrationDataError, CheckpointError, UsageError
from edgewright.files import inside, os_errors, require_space, scratch_folder
from edgewright.formats import Array
from edgewright.graph import Stage
from edgewright.graph.writer import WEIGHTS_FILE
from edgewright.models import build_llm
from edgewright.progress import SILENT, Advance, Progress
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import stored_recipe
from edgewright.quantizer.judge import Judgement, Pass, Predictions, following_of
from edgewright.runtime.llm import LLM, llm_stage
from edgewright.runtime.session import Session
from edgewright.runtime.text import Tokenizer

#: The text that ships.
HELD_OUT = "heldout"
WINDOWS, LENGTH = 16, 256
_TOKENIZER = "sidecars/tokenizer.json"


@dataclass(frozen=True)
class Measured:
    """A candidate: its kind (bundle or checkpoint), bytes of its weights, formats with how many modules, figures."""

    name: str
    kind: str
    bytes: int
    formats: Mapping[str, int]
    judgement: Judgement

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        return {**vars(self), "formats": dict(self.formats), "judgement": self.judgement.to_json()}


@dataclass(frozen=True)
class Comparison:
    """The float model, the candidates in the order they were given, and the text they were compared on."""

    reference: Mapping[str, Any]
    text: Mapping[str, Any]
    candidates: tuple[Measured, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        return {
            "reference": dict(self.reference),
            "text": dict(self.text),
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "notes": list(self.notes),
        }


def compare_quality(
    candidates: Sequence[str | Path],
    against: str | Path,
    *,
    texts: Sequence[str | Path] = (),
    count: int = WINDOWS,
    length: int = LENGTH,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Comparison:
    """Compare bundles and quantized checkpoints with a checkpoint on windows of text.

    `texts` are plain text files (none: the text that ships); at most `count` windows of `length` tokens are taken, as
    `seed` decides. A bundle computes as it does on its device, a checkpoint in float32 over its decoded weights, with
    the rounding of activations and cache that it asks for. Memory is bounded by one model and one window's logits; the
    float model's predictions wait on the disk. Raises the package's errors.
    """
    checkpoint = _reference(Path(against))
    others = [_candidate(Path(path)) for path in candidates]
    side = _Side.of(checkpoint, Path(against).name)
    for other in others:
        side.check(other.side)
    notes: list[str] = []
    context = min(side.context, *(other.side.context for other in others))
    if length > context:
        notes.append(f"windows have {context} tokens, because that is all the context holds")
    with progress.step("held-out text"):
        rows, text = _windows(texts, side, count, min(length, context), seed, notes)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        stack.enter_context(os_errors("the comparison"))
        require_space(folder, sum(map(len, rows)) * side.vocab * 4, "The comparison")
        with progress.step("float model", len(rows)) as advance, _checkpoint_session(checkpoint, threads) as session:
            predictions = Predictions(folder / "reference.bin", _passes(session, rows, advance))
        measured = tuple(_measure(other, predictions, rows, threads, progress) for other in others)
    reference = {
        "name": Path(against).name,
        "bytes": _tensor_bytes(checkpoint),
        "perplexity": predictions.perplexity,
        "perplexity_error": predictions.perplexity_error,
    }
    return Comparison(reference, text, measured, tuple(notes))


@dataclass(frozen=True)
class _Side:
    """What two models must have in common: tokenizer and vocabulary; and what bounds a window."""

    name: str
    tokenizer: Tokenizer | None
    vocab: int
    context: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, name: str) -> _Side:
        contract = build_llm(checkpoint).contract
        vocab = contract.outputs[0].shape[-1]
        assert isinstance(vocab, int)
        return cls(name, text_side(checkpoint).tokenizer, vocab, contract.bounds["capacity"][1])

    def check(self, other: _Side) -> None:
        """Raise UsageError when the other model's ids don't mean the same."""
        if other.vocab != self.vocab:
            raise UsageError(
                f"{other.name} has {other.vocab} tokens and {self.name} has {self.vocab}, so their predictions can't "
                "be compared: give the checkpoint that it was made from."
            )
        if self.tokenizer is None or other.tokenizer is None:
            return
        if fingerprint(self.tokenizer) != fingerprint(other.tokenizer):
            raise UsageError(
                f"{other.name} has another tokenizer than {self.name}, so their ids mean different texts: give the "
                "checkpoint that it was made from."
            )


class _Candidate(ABC):
    """Something that predicts tokens."""

    kind = ""

    def __init__(self, side: _Side, size: int, formats: Mapping[str, int]) -> None:
        self.side, self.bytes, self.formats = side, size, formats

    @abstractmethod
    def session(self, threads: int | None) -> AbstractContextManager[Session]:
        """Load it and open a session of one sequence."""


class _Bundle(_Candidate):
    kind = "bundle"

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path, self._manifest = path, manifest
        if manifest.model.get("vocabulary"):
            raise BundleError(
                f"{path.name} has a reduced vocabulary, so it predicts other tokens than the checkpoint: give a bundle "
                "with the whole vocabulary."
            )
        contract = llm_stage(manifest).contract
        vocab = contract.outputs[0].shape[-1]
        assert isinstance(vocab, int)
        tokenizer = None
        if _TOKENIZER in manifest.files:
            tokenizer = Tokenizer.from_files(inside(path, _TOKENIZER), None)
        side = _Side(path.name, tokenizer, vocab, contract.bounds["capacity"][1])
        entries = manifest.files.items()
        size = sum(entry["bytes"] for name, entry in entries if name.endswith(f"/{WEIGHTS_FILE}"))
        super().__init__(side, size, manifest.recipe["summary"]["formats"])

    @contextmanager
    def session(self, threads: int | None) -> Iterator[Session]:
        check_files(self._path, self._manifest)
        yield LLM.load(self._path, threads=threads, check=False).session()


class _Quantized(_Candidate):
    kind = "checkpoint"

    def __init__(self, path: Path) -> None:
        self._checkpoint = open_checkpoint(path)
        _, formats = _stage_of(self._checkpoint)
        super().__init__(_Side.of(self._checkpoint, path.name), _tensor_bytes(self._checkpoint), formats)

    @contextmanager
    def session(self, threads: int | None) -> Iterator[Session]:
        with _checkpoint_session(self._checkpoint, threads) as session:
            yield session


def _reference(path: Path) -> Checkpoint:
    if (path / MANIFEST).is_file():
        raise UsageError(f"{path.name} is a bundle: give --against the checkpoint that the candidates were made from.")
    return open_checkpoint(path)


def _candidate(path: Path) -> _Candidate:
    return _Bundle(path, read_manifest(path)) if (path / MANIFEST).is_file() else _Quantized(path)


def _tensor_bytes(checkpoint: Checkpoint) -> int:
    return sum(tensor.nbytes for tensor in checkpoint.tensors.values())


def _stage_of(checkpoint: Checkpoint) -> tuple[Stage, dict[str, int]]:
    """Return the graph that computes with a checkpoint's weights as they are stored, and its modules by format.

    Of a checkpoint that no tool quantized (a GGUF file among them) that is the float graph.
    """
    stage = build_llm(checkpoint)
    if checkpoint.quantization is None:
        return stage, dict(Counter(tensor.dtype for tensor in checkpoint.tensors.values() if len(tensor.shape) > 1))
    applied = quantize_stage(stage, stored_recipe("stored"))
    stage.cache = give_cache(stage, checkpoint, checkpoint.quantization)
    return stage, dict(Counter(module.format.label for module in applied))


@contextmanager
def _checkpoint_session(checkpoint: Checkpoint, threads: int | None) -> Iterator[Session]:
    from edgewright.verify.reference import reference_of

    stage, _ = _stage_of(checkpoint)
    with reference_of(stage, lambda _: None) as reference:
        yield Session(reference.engine(threads))


def _windows(
    texts: Sequence[str | Path], side: _Side, count: int, length: int, seed: int, notes: list[str]
) -> tuple[list[Array], dict[str, Any]]:
    """Return whole windows of the text, and the record of them; raises CalibrationDataError when there is none."""
    if side.tokenizer is None:
        raise CalibrationDataError(f"{side.name} has no tokenizer, so nothing can be read with it: add its tokenizer.")
    files = _read(texts)
    found, _ = windows([file.text for file in files], side.tokenizer, length=length, seed=seed, notes=notes)
    whole = [row for row in found if len(row) == length]
    if not whole:
        tokens = max((len(row) for row in found), default=0)
        raise CalibrationDataError(
            f"The text has {tokens} tokens and a window takes {length}: give more text, or a smaller --length."
        )
    for ids in whole[:count]:
        if ids.max() >= side.vocab:
            raise CheckpointError(
                f"The tokenizer of {side.name} gives the id {ids.max()} and the model has {side.vocab} tokens: repair "
                "the checkpoint."
            )
    if len(whole) < count:
        notes.append(f"{count} windows were wanted and the text has {len(whole)}")
    rows = whole[:count]
    record = {"sources": [file.record for file in files], "windows": len(rows), "length": length, "seed": seed}
    return rows, {**record, "positions": len(rows) * length}


def _read(texts: Sequence[str | Path]) -> list[TextFile]:
    if texts:
        return read_texts([(Path(path).name, Path(path)) for path in texts])
    shipped = resources.files("edgewright.calibration") / "texts" / f"{HELD_OUT}.txt"
    with resources.as_file(shipped) as path:
        return read_texts([(path.name, path)])


def _measure(
    other: _Candidate, predictions: Predictions, rows: Sequence[Array], threads: int | None, progress: Progress
) -> Measured:
    with progress.step(other.side.name, len(rows)) as advance, other.session(threads) as session:
        judgement = predictions.compare(_passes(session, rows, advance))
    return Measured(other.side.name, other.kind, other.bytes, other.formats, judgement)


def _passes(session: Session, rows: Sequence[Array], advance: Advance) -> Iterator[Pass]:
    for ids in rows:
        session.truncate(0)
        yield session.append(ids, logits="all"), following_of(ids)
        advance(1)
