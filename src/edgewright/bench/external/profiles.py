"""One profile of the profiles that the dialogs' own processes wrote."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from edgewright.bench.external.executions import executions_of
from edgewright.bench.external.mapping import zero_us
from edgewright.bench.external.pull import EXECUTIONS, PROFILE
from edgewright.bench.records.reader import Run
from edgewright.bench.records.rows import RUN
from edgewright.errors import GenieError
from edgewright.genie import Component, Event, read_profile, write_profile


def write_joined_profile(run: Run) -> None:
    """Write `profile.json` of the first repeat where each dialog was a process: dialog0, dialog1, ... of the case.

    Events are placed by when their process started; figures are as the library gave them. Nothing is written where no
    profile is whole. Raises OutputError.
    """
    if run.env.get("external", {}).get("process") != "dialog":
        return
    numbers = {name: number for number, name in enumerate(run.dialogs)}
    events: dict[int, list[Event]] = defaultdict(list)
    for one in executions_of(run):
        if (one.get("part"), one.get("repeat")) != (RUN, 0) or not one.get("profile"):
            continue
        try:
            profile = read_profile(run.folder / EXECUTIONS / one["name"] / PROFILE)
        except GenieError:
            continue
        shift = round(float(one["started_ms"]) * 1000) - (zero_us(profile) or 0)
        for component in profile.dialogs:
            moved = [replace(event, start_us=event.start_us + shift) for event in component.events]
            events[numbers[one["dialogs"][0]]] += moved
    if events:
        components = [Component(f"dialog{n}", "dialog", tuple(found)) for n, found in sorted(events.items())]
        write_profile(run.folder / PROFILE, components, 0)
