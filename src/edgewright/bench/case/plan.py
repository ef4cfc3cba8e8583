"""What a case will do, before it is done: dialogs, encodings, shares over time, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgewright.bench.case.facts import Facts, facts_of, prompt_tokens
from edgewright.bench.case.inputs import read_text, read_token_ids
from edgewright.bench.case.spec import Case, DialogSpec, ModelSpec
from edgewright.errors import EdgewrightError
from edgewright.runtime.encoding import EmbeddingFile, Encoding, Requantizer
from edgewright.runtime.rawtable import RawRows
from edgewright.runtime.scheduling.disciplines import starvation_bound
from edgewright.runtime.scheduling.seat import Client
from edgewright.runtime.scheduling.timeline import NS_PER_MS, segments

#: Disciplines whose expected shares are those of the weights: of quanta, or of time.
_SHARED = {"weighted": "quanta", "fair-time": "time"}


@dataclass(frozen=True)
class EncodingPlan:
    """How the embeddings of a dialog are stored, and how its table's codes become its input's: k * code + b."""

    input: Encoding
    table: Encoding | None = None
    k: float | None = None
    b: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values; ranges are real numbers, None for float32."""
        return {
            "input": _encoding_json(self.input),
            "table": None if self.table is None else _encoding_json(self.table),
            "requantize": None if self.k is None else {"k": self.k, "b": self.b},
        }


@dataclass(frozen=True)
class DialogPlan:
    """A dialog, resolved. `prompt_tokens` is None where only the run will tell."""

    name: str
    model: str
    asked: str
    prompt_tokens: int | None
    max_tokens: int | None
    iterations: int
    weights: str
    priority: int
    bound: int | None
    encoding: EncodingPlan | None
    cache_bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        return {**vars(self), "encoding": None if self.encoding is None else self.encoding.to_json()}


@dataclass(frozen=True)
class SegmentPlan:
    """A time in which no weight changes; `shares` are None where the discipline promises none."""

    start_ms: int
    end_ms: int | None
    weights: dict[str, float]
    shares: dict[str, float] | None


@dataclass(frozen=True)
class Plan:
    """What a case will do. `memory` are bytes by model, None where they aren't known."""

    case: Case
    dialogs: tuple[DialogPlan, ...]
    segments: tuple[SegmentPlan, ...]
    memory: dict[str, int | None]
    notes: tuple[str, ...]
    simulated: bool

    @property
    def share_of(self) -> str | None:
        """What the shares are of: quanta or time; None where the discipline promises none."""
        return _SHARED.get(self.case.scheduler.discipline)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values."""
        return {
            "case": self.case.name,
            "simulated": self.simulated,
            "discipline": self.case.scheduler.discipline,
            "share_of": self.share_of,
            "dialogs": [dialog.to_json() for dialog in self.dialogs],
            "segments": [dict(vars(segment)) for segment in self.segments],
            "memory_bytes": self.memory,
            "notes": list(self.notes),
        }


def plan_case(case: Case) -> Plan:
    """Return what a case will do; what isn't known here, such as a device's files, is None."""
    known = {model.name: _known(model) for model in case.models}
    clients = [Client(name=d.name, timeline=d.timeline, priority=d.priority) for d in case.dialogs]
    dialogs = tuple(
        _dialog(dialog, case.model_of(dialog), known[dialog.model], _bound(case, clients, index))
        for index, dialog in enumerate(case.dialogs)
    )
    names = [dialog.name for dialog in case.dialogs]
    shared = case.scheduler.discipline in _SHARED
    parts = tuple(
        SegmentPlan(
            start_ms=part.start_ns // NS_PER_MS,
            end_ms=None if part.end_ns is None else part.end_ns // NS_PER_MS,
            weights=dict(zip(names, part.weights, strict=True)),
            shares=dict(zip(names, part.shares, strict=True)) if shared else None,
        )
        for part in segments([dialog.timeline for dialog in case.dialogs])
    )
    used = dict.fromkeys(dialog.model for dialog in case.dialogs)
    return Plan(
        case,
        dialogs,
        parts,
        {name: None if (one := known[name]) is None else one.file_bytes for name in used},
        tuple(_notes(case, parts)),
        any(case.model_of(dialog).simulated is not None for dialog in case.dialogs),
    )


def _known(model: ModelSpec) -> Facts | None:
    try:
        return facts_of(model)
    except EdgewrightError:
        return None


def _bound(case: Case, clients: list[Client], index: int) -> int | None:
    return starvation_bound(case.scheduler.discipline, clients, index)


def _dialog(dialog: DialogSpec, model: ModelSpec, facts: Facts | None, bound: int | None) -> DialogPlan:
    embedding = dialog.input.embedding
    return DialogPlan(
        name=dialog.name,
        model=model.name,
        asked=_asked(dialog),
        prompt_tokens=_prompt_tokens(dialog, model, facts),
        max_tokens=dialog.max_tokens,
        iterations=dialog.iterations,
        weights=str(dialog.timeline),
        priority=dialog.priority,
        bound=bound,
        encoding=None if embedding is None else _encoding(embedding, dialog, model),
        cache_bytes=None if facts is None else facts.cache_bytes,
    )


def _asked(dialog: DialogSpec) -> str:
    """Return in a few words what a dialog is asked."""
    asked = dialog.input
    if asked.embedding is not None:
        return f"embeddings {asked.embedding.path}"
    if asked.prompt is not None:
        return f"text of {len(asked.prompt)} characters"
    for what, path in (
        ("text", asked.prompt_file),
        ("token ids", asked.tokens_file),
        ("observation", asked.observation),
    ):
        if path is not None:
            return f"{what} {path}"
    return "nothing" if asked.prompt_tokens is None else f"{asked.prompt_tokens} simulated tokens"


def _prompt_tokens(dialog: DialogSpec, model: ModelSpec, facts: Facts | None) -> int | None:
    """Return the tokens of a prompt, None where only the run will tell."""
    asked = dialog.input
    if facts is None or facts.kind != "llm" or asked.prompt_tokens is not None:
        return asked.prompt_tokens
    try:
        if asked.embedding is not None:
            width = facts.width
            return None if width is None else len(RawRows(asked.embedding.path, asked.embedding.encoding, width))
        if asked.tokens_file is not None:
            return len(read_token_ids(asked.tokens_file))
        text = asked.prompt if asked.prompt_file is None else read_text(asked.prompt_file)
        return None if text is None or model.bundle is None else prompt_tokens(model.bundle, text, raw=dialog.raw)
    except EdgewrightError:
        return None


def _encoding(embedding: EmbeddingFile, dialog: DialogSpec, model: ModelSpec) -> EncodingPlan:
    if not isinstance(model.table, EmbeddingFile):
        return EncodingPlan(embedding.encoding)
    table = model.table.encoding
    try:
        way = Requantizer(table, embedding.encoding, mode=dialog.requantize)
    except EdgewrightError:
        return EncodingPlan(embedding.encoding, table)
    same_floats = table.dtype == "float32"
    return EncodingPlan(
        embedding.encoding, table, None if same_floats else way.scale, None if same_floats else way.offset
    )


def _encoding_json(encoding: Encoding) -> dict[str, Any]:
    integer = encoding.dtype != "float32"
    return {
        "dtype": encoding.dtype,
        "scale": encoding.scale,
        "offset": encoding.offset,
        "range": [encoding.scale * (code + encoding.offset) for code in (encoding.low, encoding.high)]
        if integer
        else None,
    }


def _notes(case: Case, parts: tuple[SegmentPlan, ...]) -> list[str]:
    notes = []
    for dialog in case.dialogs:
        last = parts[-1]
        if not last.weights[dialog.name] and any(last.weights.values()):
            notes.append(f"{dialog.name} is paused from {last.start_ms} ms on for good: it must be done by then.")
        if dialog.input.embedding is not None and case.model_of(dialog).table == "none":
            notes.append(f"{dialog.name} has no table, so it ends with its first token.")
    return notes
