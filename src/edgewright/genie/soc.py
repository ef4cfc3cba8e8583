"""The chips that configurations are written for, and the HTP back end's extension file of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from edgewright.errors import UsageError
from edgewright.genie.schema import near

_ARCH = re.compile(r"v\d{2}", re.ASCII)


@dataclass(frozen=True)
class Soc:
    """A chip: its number and its DSP's architecture in the back end's terms; `mmap`: whether files can be mapped."""

    name: str
    soc_model: int
    dsp_arch: str
    mmap: bool = True


#: Numbers and architectures are those of the back end's public list of supported chips. Windows maps no binaries.
SOCS = (
    Soc("sa8255", 52, "v73"),
    Soc("sa8775", 52, "v73"),
    Soc("sa8295", 39, "v68"),
    Soc("sa8797", 72, "v81"),
    Soc("8-gen-2", 43, "v73"),
    Soc("8-gen-3", 57, "v75"),
    Soc("8-elite", 69, "v79"),
    Soc("8-elite-gen-5", 87, "v81"),
    Soc("x-elite", 60, "v73", mmap=False),
    Soc("x-plus", 60, "v73", mmap=False),
)
#: Other names of the same chips.
_ALIASES = {
    "sa8255p": "sa8255", "sa8775p": "sa8775", "sa8295p": "sa8295", "sa8797p": "sa8797", "sm8550": "8-gen-2",
    "sm8650": "8-gen-3", "sm8750": "8-elite", "sm8850": "8-elite-gen-5", "x1e80100": "x-elite",
}  # fmt: skip


def soc_of(name: str, *, soc_model: int | None = None, dsp_arch: str | None = None) -> Soc:
    """Return a chip by name; numbers that are given hold instead of the known ones.

    Raises UsageError for an unknown name where not both numbers are given, and for an architecture that is none.
    """
    if dsp_arch is not None and not _ARCH.fullmatch(dsp_arch):
        raise UsageError(f"The DSP architecture {dsp_arch!r} is none: give one as v73.")
    plain = name.strip().lower().replace(" ", "-").replace("_", "-").removeprefix("snapdragon-")
    plain = _ALIASES.get(plain, plain)
    known = next((soc for soc in SOCS if soc.name == plain), None)
    if known is None and (soc_model is None or dsp_arch is None):
        names = [soc.name for soc in SOCS]
        raise UsageError(
            f"The chip {name!r} is not known here{near(plain, names)}: choose from {', '.join(names)}, or give "
            "--soc-model and --dsp-arch."
        )
    return Soc(
        name=known.name if known else plain,
        soc_model=known.soc_model if soc_model is None and known else int(soc_model or 0),
        dsp_arch=known.dsp_arch if dsp_arch is None and known else str(dsp_arch),
        mmap=known.mmap if known else True,
    )


def extensions_of(soc: Soc, *, device_id: int | None = None, perf_profile: str = "burst") -> dict[str, Any]:
    """Return the extension file for a chip: one core at full speed, weights shared between the graphs of a binary.

    `device_id` chooses among several accelerators of a chip.
    """
    core = {"core_id": 0, "perf_profile": perf_profile, "rpc_control_latency": 100}
    device: dict[str, Any] = {"soc_model": soc.soc_model, "dsp_arch": soc.dsp_arch, "cores": [core]}
    if device_id is not None:
        device = {"device_id": device_id, **device}
    return {
        "devices": [device],
        "memory": {"mem_type": "shared_buffer"},
        "context": {"weight_sharing_enabled": True},
    }
