"""One run of each phase in the Trace Event Format, which chrome://tracing and Perfetto show: a process for each phase.

Layers are one thread; above them a thread has the parts of the model that follow each other. Engines that don't say
when a layer began have their layers one after the other.
"""

from __future__ import annotations

from typing import Any

from edgewright.profile.profile import Layer, Phase, Profile, Span

_PARTS, _LAYERS = 1, 2


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Return the trace as JSON-compatible values; times are microseconds from the begin of a run."""
    events: list[dict[str, Any]] = []
    for process, phase in enumerate(profile.phases, 1):
        events += _names(process, phase)
        spans = timeline(phase)
        events += _parts(process, phase, spans)
        events += [_span(process, phase.layers[span.layer], span) for span in spans]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"bundle": profile.bundle, **{f"engine of {k}": v for k, v in profile.engines.items()}},
    }


def timeline(phase: Phase) -> tuple[Span, ...]:
    """Return a run: the one that was recorded, else the layers' means one after the other."""
    if phase.timeline:
        return phase.timeline
    spans, at = [], 0.0
    for index, layer in enumerate(phase.layers):
        spans.append(Span(index, at, 1000 * layer.mean_ms))
        at += 1000 * layer.mean_ms
    return tuple(spans)


def _names(process: int, phase: Phase) -> list[dict[str, Any]]:
    sizes = ", ".join(f"{name} {size}" for name, size in phase.sizes.items())
    named = [("process_name", 0, f"{phase.name} ({sizes})" if sizes else phase.name)]
    named += [("thread_name", _PARTS, "parts of the model"), ("thread_name", _LAYERS, "layers")]
    return [
        {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}} for what, thread, name in named
    ]


def _span(process: int, layer: Layer, span: Span) -> dict[str, Any]:
    facts: dict[str, Any] = {"modules": list(layer.modules), "stage": layer.stage}
    if layer.macs:
        facts["MACs"] = sum(layer.macs.values())
    if layer.bytes:
        facts["bytes"] = layer.bytes
    return {
        "ph": "X",
        "name": layer.name,
        "cat": layer.kind or "layer",
        "pid": process,
        "tid": _LAYERS,
        "ts": round(span.start_us, 3),
        "dur": round(span.us, 3),
        "args": facts,
    }


def _parts(process: int, phase: Phase, spans: tuple[Span, ...]) -> list[dict[str, Any]]:
    """Return the parts of the model that follow each other, from the begin of a first layer to the end of a last."""
    found: list[dict[str, Any]] = []
    until = 0.0
    for span in sorted(spans, key=lambda one: (one.start_us, -one.us)):
        if span.start_us < until:  # inside of the last
            continue
        name, end = phase.layers[span.layer].group, span.start_us + span.us
        until = end
        last = found[-1] if found else None
        if last is not None and last["name"] == name:
            last["dur"] = round(max(last["dur"], end - last["ts"]), 3)
        else:
            start = round(span.start_us, 3)
            found.append(
                {"ph": "X", "name": name, "cat": "part", "pid": process, "tid": _PARTS, "ts": start,
                 "dur": round(span.us, 3), "args": {}}
            )  # fmt: skip
    return found
