"""The machine a stage was compiled for: architecture, CPU features that choose kernels, engine version."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from edgewright.errors import TargetMismatchError

#: CPU flags that change which kernels ONNX Runtime runs.
_FEATURES = frozenset(
    [
        "sse4_1",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx_vnni",
        "avx_vnni_int8",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_int8",
        "amx_bf16",
        "asimd",
        "asimdhp",
        "asimddp",
        "i8mm",
        "bf16",
        "sve",
        "sve2",
        "sme",
    ]
)


@dataclass(frozen=True)
class Machine:
    """Architecture (`x86_64`, `aarch64`), sorted CPU features, and ONNX Runtime's version."""

    arch: str
    features: tuple[str, ...]
    onnxruntime: str

    def to_json(self) -> dict[str, Any]:
        """Return the machine as JSON-compatible values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        """Build from a manifest; raises KeyError or TypeError on another layout."""
        return cls(str(data["arch"]), tuple(data["features"]), str(data["onnxruntime"]))

    def require(self, here: Machine) -> None:
        """Raise TargetMismatchError unless a stage compiled for this machine runs the same kernels on `here`."""
        advice = "compile it again here: edgewright compile BUNDLE -o NEW"
        if self.arch != here.arch:
            raise TargetMismatchError(f"The bundle was compiled for {self.arch} and this is {here.arch}: {advice}.")
        if self.features != here.features:
            missing = sorted(set(self.features) - set(here.features))
            extra = sorted(set(here.features) - set(self.features))
            words = [f"this CPU lacks {' '.join(missing)}"] if missing else []
            words += [f"this CPU has {' '.join(extra)} besides"] if extra else []
            raise TargetMismatchError(
                f"The bundle was verified with other CPU features ({', '.join(words)}): {advice}."
            )
        if _minor(self.onnxruntime) != _minor(here.onnxruntime):
            raise TargetMismatchError(
                f"The bundle was compiled with ONNX Runtime {self.onnxruntime}, not {here.onnxruntime}: {advice}."
            )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


@cache
def this_machine() -> Machine:
    """Return the machine this process runs on; without /proc the feature list is empty."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    return Machine(platform.machine(), tuple(sorted(flags & _FEATURES)), metadata.version("onnxruntime"))
