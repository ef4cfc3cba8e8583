"""`env.json`: on what a run was made."""

from __future__ import annotations

import os
import platform
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from edgewright._version import __version__
from edgewright.bundle import this_machine

_PACKAGES = ("onnxruntime", "numpy", "tokenizers", "jinja2")


def environment(*, simulated: bool, threads: int | None) -> dict[str, Any]:
    """Return versions, machine and settings as plain values; null where this system doesn't say."""
    machine = this_machine()
    return {
        "schema_version": 1,
        "simulated": simulated,
        "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {
            "edgewright": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "machine": {
            "system": platform.system(),
            "release": platform.release(),
            "arch": machine.arch,
            "cpu": _first(r"^(?:model name|Model)\s*:\s*(.*)$", _read("/proc/cpuinfo")),
            "features": list(machine.features),
            "logical_cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "memory_bytes": _kib(_first(r"^MemTotal:\s*(\d+) kB$", _read("/proc/meminfo"))),
            "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
            "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        },
        "threads": threads,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else None


def _kib(text: str | None) -> int | None:
    return None if text is None else int(text) * 1024
