"""Compilation for OpenVINO's CPU plug-in: the graph as OpenVINO's own model, whose caches are states.

The product is a model description over the stage's weight file, which any OpenVINO of the version reads, and no blob
that the plug-in exported: that holds every weight again, differs from export to export, and loads only 1 s sooner.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edgewright.bundle.machine import this_machine
from edgewright.bundle.manifest import StageEntry
from edgewright.errors import MissingExtraError, UsageError
from edgewright.graph.writer import MODEL_FILE
from edgewright.targets.backend import StageWork

if TYPE_CHECKING:
    from edgewright.targets.platform import Platform

#: What a cache may be kept in; the first is the default.
KV_PRECISIONS = ("f32", "f16", "u8")
#: Sizes of the runs of inputs that OpenVINO rounds to int8 with a scale of their own.
_GROUPS = ("0", "32", "64", "128", "256")


class OpenVinoBackend:
    """OpenVINO's CPU plug-in."""

    name = "openvino"
    dialect = "openvino"
    options: ClassVar[Mapping[str, str]] = {
        "kv": f"What OpenVINO keeps keys and values in: {', '.join(KV_PRECISIONS)} (default f32).",
        "dynamic-quantization-group": "Inputs that share one scale when products of quantized weights round them to "
        "int8: 0 (none is rounded), 32, 64, 128 or 256 (default: the recipe's blocks where it rounds inputs, else 0).",
        "threads": "CPU threads, 0 for one per physical core (default 0).",
    }

    def require(self, platform: Platform | None, options: Mapping[str, str]) -> None:
        """Raise MissingExtraError without OpenVINO, UsageError on a platform or an option that it hasn't."""
        if importlib.util.find_spec("openvino") is None:
            raise MissingExtraError("OpenVINO is not installed: pip install 'edgewright[openvino]'.")
        _settings(options, rounded=0)

    def compile(self, work: StageWork) -> StageEntry:
        """Compile a stage; peak memory is OpenVINO's own for one load. See `Backend.compile`."""
        from edgewright.targets.openvino.reading import read_graph
        from edgewright.targets.openvino.writing import ENGINE_FILE, write_model

        read = read_graph(work.folder / MODEL_FILE, work.contract)
        write_model(read.model, work.folder)
        return StageEntry(
            graph=f"{work.prefix}/{MODEL_FILE}",
            dialect=self.dialect,
            contract=work.contract,
            settings=_settings(work.options, rounded=read.group),
            engine=f"{work.prefix}/{ENGINE_FILE}",
            machine=this_machine("openvino"),
            runtime="openvino",
        )

    def stand_in(self, root: Path, entry: StageEntry, threads: int | None) -> None:
        """Return None: the engine runs here."""


BACKEND = OpenVinoBackend()


def _settings(options: Mapping[str, str], *, rounded: int) -> dict[str, Any]:
    """Return the settings of an engine whose recipe rounds runs of that many inputs; raises UsageError on an option."""
    rounded = max((int(size) for size in _GROUPS if rounded and int(size) and rounded % int(size) == 0), default=0)
    kv = options.get("kv", KV_PRECISIONS[0])
    group = options.get("dynamic-quantization-group", str(rounded))
    threads = options.get("threads", "0")
    for name, value, known in (("kv", kv, KV_PRECISIONS), ("dynamic-quantization-group", group, _GROUPS)):
        if value not in known:
            raise UsageError(f"The option {name} of the target openvino can't be {value!r}: {', '.join(known)}.")
    if not threads.isascii() or not threads.isdigit() or int(threads) > 4096:
        raise UsageError(f"The option threads of the target openvino can't be {threads!r}: give a number from 0.")
    return {"kv": kv, "group": int(group), "threads": int(threads)}
