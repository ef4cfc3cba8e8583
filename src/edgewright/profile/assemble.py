"""Phases made of what engines recorded: events of one layer taken together, named by modules, joined with the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgewright.plan.work import Work
from edgewright.profile.groups import NONE, group_of, module_path
from edgewright.profile.layers import Averages, EngineRun, Event
from edgewright.profile.owners import Owners
from edgewright.profile.placing import Doer, place
from edgewright.profile.profile import Layer, Phase, Span

_Key = tuple[str, str, tuple[str, ...]]


@dataclass
class _Found:
    kind: str
    times_us: list[float]
    calls: int = 0


@dataclass(frozen=True)
class Recorded:
    """One run of a phase: the engine's calls it took, each with its stage."""

    calls: Sequence[tuple[str, EngineRun]] = field(default_factory=list)

    @property
    def us(self) -> float:
        """Microseconds of all calls."""
        return sum(run.us for _, run in self.calls)


def phase_of_runs(
    name: str,
    sizes: Mapping[str, int],
    runs: Sequence[Recorded],
    owners: Mapping[str, Owners],
    *,
    averages: Mapping[str, Sequence[Averages]] | None = None,
    work: Mapping[str, Sequence[Work]] | None = None,
    latencies_ms: Sequence[float] = (),
) -> Phase:
    """Return a phase of runs, at least one. `owners` and `work` are by stage; without `work` nothing is planned.

    `averages` are the layers of stages whose engines give means of a run alone, by stage.
    """
    found: dict[_Key, _Found] = {}
    shown = sorted(range(len(runs)), key=lambda index: runs[index].us)[len(runs) // 2]
    spans: list[tuple[_Key, float, float]] = []
    for index, run in enumerate(runs):
        begin = 0.0
        for stage, call in run.calls:
            for key, kind, event in _events(stage, call, owners.get(stage)):
                one = found.setdefault(key, _Found(kind, [0.0] * len(runs)))
                one.times_us[index] += event.us
                one.calls += 1
                if index == shown:
                    spans.append((key, begin + event.start_us, event.whole_us))
            begin += call.us
    layers = [_layer(key, one, len(runs)) for key, one in found.items()] + _means(averages or {}, owners)
    places = {key: index for index, key in enumerate(found)}
    totals = tuple(run.us / 1000 for run in runs)
    phase = Phase(
        name,
        dict(sizes),
        tuple(layers),
        totals,
        max(sum(totals) / len(totals), sum(layer.mean_ms for layer in layers) if averages else 0.0),
        tuple(latencies_ms),
        timeline=() if averages else tuple(Span(places[key], start, us) for key, start, us in spans),
    )
    return _with_work(phase, owners, work)


def phase_of_averages(
    name: str,
    sizes: Mapping[str, int],
    averages: Mapping[str, Sequence[Averages]],
    owners: Mapping[str, Owners],
    *,
    work: Mapping[str, Sequence[Work]] | None = None,
    latencies_ms: Sequence[float] = (),
) -> Phase:
    """Return a phase of layers whose means alone are known, by stage; the whole run is their sum."""
    layers = _means(averages, owners)
    total = sum(layer.mean_ms for layer in layers)
    return _with_work(Phase(name, dict(sizes), tuple(layers), (), total, tuple(latencies_ms)), owners, work)


def _means(averages: Mapping[str, Sequence[Averages]], owners: Mapping[str, Owners]) -> list[Layer]:
    """Return the layers of averages."""
    found = []
    for stage, items in averages.items():
        owner = owners.get(stage)
        for one in items:
            nodes = owner.of(one.name, originals=one.originals) if owner is not None else ()
            layer = Layer(one.name, one.kind, stage, (), NONE, 1, (), one.mean_ms, one.median_ms)
            found.append(_named(layer, nodes))
    return found


def _events(stage: str, call: EngineRun, owner: Owners | None) -> list[tuple[_Key, str, Event]]:
    """Return every event of a call with its layer's key and its op."""
    found: list[tuple[_Key, str, Event]] = []
    for event in call.events:
        nodes = owner.of(event.name, event.place, event.originals) if owner is not None else ()
        if not nodes and event.inside >= 0:
            nodes = found[event.inside][0][2]
        kind = event.kind or (owner.kind(nodes[0]) if owner is not None and len(nodes) == 1 else "")
        found.append(((stage, event.name, nodes), kind, event))
    return found


def _layer(key: _Key, one: _Found, runs: int) -> Layer:
    stage, name, nodes = key
    times = tuple(us / 1000 for us in one.times_us)
    layer = Layer(name, one.kind, stage, (), NONE, one.calls / runs, times, float(np.mean(times)))
    return _named(layer, nodes)


def _named(layer: Layer, nodes: tuple[str, ...]) -> Layer:
    """Return a layer with its nodes, their modules, and the group of the last, which gives the result."""
    modules = tuple(dict.fromkeys(module_path(node) for node in nodes))
    return replace(layer, nodes=nodes, modules=modules, group=group_of(modules[-1]) if modules else NONE)


def _with_work(phase: Phase, owners: Mapping[str, Owners], work: Mapping[str, Sequence[Work]] | None) -> Phase:
    """Return a phase whose layers have the work that the plan counts for them."""
    if work is None:
        return phase
    layers, left = list(phase.layers), list[Work]()
    for stage, items in work.items():
        owner = owners[stage]
        places = [index for index, layer in enumerate(layers) if layer.stage == stage]
        doers = [Doer(layers[index].nodes, layers[index].kind, layers[index].mean_ms) for index in places]
        placed, rest = place(items, doers, owner.kind)
        left += rest
        weight = _weights(items)
        for index, done in zip(places, placed, strict=True):
            layer = replace(layers[index], macs=done.macs, bytes=done.bytes)
            layers[index] = replace(layer, group=_group(layer, weight))
    return replace(
        phase,
        layers=tuple(layers),
        planned=True,
        unplaced_macs=sum(item.macs for item in left),
        unplaced_bytes=sum(item.bytes for item in left),
    )


def _weights(items: Sequence[Work]) -> dict[str, tuple[int, int]]:
    """Return the multiply-adds and bytes of modules."""
    found: dict[str, tuple[int, int]] = {}
    for item in items:
        module = module_path(item.module)
        macs, moved = found.get(module, (0, 0))
        found[module] = (macs + item.macs, moved + item.bytes)
    return found


def _group(layer: Layer, weight: Mapping[str, tuple[int, int]]) -> str:
    """Return the group of the module with the most work among a layer's; of equals the last gives the result."""
    if not layer.modules:
        return NONE
    places = range(len(layer.modules))
    best = max(places, key=lambda index: (*weight.get(layer.modules[index], (0, 0)), index))
    return group_of(layer.modules[best])
