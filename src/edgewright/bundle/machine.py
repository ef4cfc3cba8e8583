"""The machine a stage was compiled for: architecture, CPU features that choose kernels, the engine and its version."""

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
from edgewright.plugins import ENGINES as PLUGGED
from edgewright.plugins import package_of

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


#: What engines are called in sentences.
ENGINES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "qnn": "ONNX Runtime's QNN provider",
    "tensorrt": "TensorRT",
    "tensorrt-rtx": "TensorRT for RTX",
}
#: The packages of engines that are not called as their engine is.
_PACKAGES = {"qnn": "onnxruntime-qnn"}


#: Devices, by how their architectures begin, and the processors beside which an engine here reaches them. What a device
#: takes of another version of its kind it says itself, when an engine is loaded.
_BESIDE: dict[str, tuple[str, ...]] = {"htp-": ("aarch64", "arm64"), "sm": ()}


@dataclass(frozen=True)
class Machine:
    """What a stage was compiled for.

    `arch` is the processor's architecture (`x86_64`, `aarch64`), or of another device the compiler's name for it
    (`htp-v75`, `sm89`); `features` are sorted CPU features, none of other devices. `engine` is the kind of engine, and
    `version` that of the package which compiled and runs it.
    """

    arch: str
    features: tuple[str, ...]
    version: str
    engine: str = "onnxruntime"

    def to_json(self) -> dict[str, Any]:
        """Return the machine as JSON-compatible values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        """Build from a manifest; raises KeyError or TypeError on another layout."""
        engine = str(data.get("engine", "onnxruntime"))
        version = data["version"] if "version" in data else data["onnxruntime"]  # as it was until schema 3
        return cls(str(data["arch"]), tuple(data["features"]), str(version), engine)

    def require(self, here: Machine) -> None:
        """Raise TargetMismatchError unless a stage compiled for this machine runs the same kernels on `here`."""
        advice = "compile it again here: edgewright compile BUNDLE -o NEW"
        beside = next((hosts for kind, hosts in _BESIDE.items() if self.arch.startswith(kind)), None)
        if here.arch.lower() not in beside if beside is not None else self.arch != here.arch:
            if beside is not None:  # its graph is in the device's own spelling, too
                advice = "run it on its device, or deploy the model again for this machine"
            raise TargetMismatchError(f"The bundle was compiled for {self.arch} and this is {here.arch}: {advice}.")
        if beside is None and self.features != here.features:
            missing = sorted(set(self.features) - set(here.features))
            extra = sorted(set(here.features) - set(self.features))
            words = [f"this CPU lacks {' '.join(missing)}"] if missing else []
            words += [f"this CPU has {' '.join(extra)} besides"] if extra else []
            raise TargetMismatchError(
                f"The bundle was verified with other CPU features ({', '.join(words)}): {advice}."
            )
        title = ENGINES.get(self.engine, self.engine)
        if not here.version:
            raise TargetMismatchError(
                f"The bundle was compiled with {title} {self.version}, which is not installed here: install it, or "
                f"{advice}."
            )
        if _minor(self.version) != _minor(here.version):
            raise TargetMismatchError(
                f"The bundle was compiled with {title} {self.version}, not {here.version}: {advice}."
            )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


@cache
def this_machine(engine: str = "onnxruntime") -> Machine:
    """Return the machine this process runs on, with an engine's version, empty where it isn't installed.

    Without /proc the feature list is empty.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    try:
        version = metadata.version(_PACKAGES.get(engine) or package_of(PLUGGED, engine))
    except metadata.PackageNotFoundError:
        version = ""
    return Machine(platform.machine(), tuple(sorted(flags & _FEATURES)), version, engine)
