"""The examination behind `doctor`: each part says what it found, none of them raises."""

from __future__ import annotations

import os
import platform
import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from edgewright._version import __version__

_PACKAGES = ("onnxruntime", "numpy", "tokenizers", "jinja2")
#: An extra's requirement in the package metadata: its name, and which extra asks for it.
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+).*;.*extra\s*==\s*['\"]([A-Za-z0-9_-]+)['\"]")
_NOT_FOR_USERS = "dev"


def examine() -> dict[str, Any]:
    """Return the state of this machine as JSON-compatible values."""
    return {
        "versions": {
            "edgewright": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "machine": _machine(),
        "memory": _memory(),
        "disk": {"path": str(Path.cwd()), "free_bytes": shutil.disk_usage(Path.cwd()).free},
        "extras": extras(),
        "engine": _engine(),
    }


def extras() -> dict[str, dict[str, Any]]:
    """Return, for each extra of the installed package, its packages' versions, what is missing and how to get it."""
    try:
        distribution = metadata.distribution("edgewright")
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, dict[str, str | None]] = {}
    for line in distribution.requires or ():
        if (match := _REQUIREMENT.match(line)) and match[2] != _NOT_FOR_USERS:
            found.setdefault(match[2], {})[match[1]] = _version(match[1])
    return {
        name: {
            "packages": packages,
            "missing": [package for package, version in packages.items() if version is None],
            "install": f"pip install 'edgewright[{name}]'",
        }
        for name, packages in found.items()
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    text = _proc("cpuinfo")
    name = re.search(r"^(?:model name|Model)\s*:\s*(.*)$", text, re.MULTILINE)
    pairs = set(re.findall(r"^physical id\s*:\s*(\d+)$[\s\S]*?^core id\s*:\s*(\d+)$", text, re.MULTILINE))
    logical = os.cpu_count() or 1
    try:
        from edgewright.bundle import this_machine

        features = list(this_machine().features)
    except metadata.PackageNotFoundError:
        features = []
    return {
        "arch": platform.machine(),
        "cpu": name[1].strip() if name else None,
        "features": features,
        "physical_cores": len(pairs) or logical,
        "logical_cores": logical,
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical,
    }


def _memory() -> dict[str, int | None]:
    values = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s*(\d+) kB$", _proc("meminfo"), re.MULTILINE)}
    return {"total_bytes": values.get("MemTotal"), "available_bytes": values.get("MemAvailable")}


def _proc(name: str) -> str:
    try:
        return (Path("/proc") / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _engine() -> dict[str, Any]:
    """Load ONNX Runtime and, where onnx can make one, run a graph of one node."""
    try:
        import numpy as np

        from edgewright.quiet_ort import ort
    except ImportError as error:
        return {"ok": False, "detail": f"ONNX Runtime can't be imported ({error}): pip install edgewright"}
    if "CPUExecutionProvider" not in ort.get_available_providers():
        return {"ok": False, "detail": "this ONNX Runtime has no CPU provider: reinstall onnxruntime"}
    try:
        from onnx import TensorProto, helper
    except ModuleNotFoundError:
        return {"ok": True, "detail": "the CPU provider is there; no graph was run, onnx is not installed"}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "one", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    try:
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (result,) = session.run(None, {"x": np.array([1, 2, 3], dtype=np.float32)})
    except Exception as error:
        return {"ok": False, "detail": f"a graph of one node failed ({str(error).splitlines()[0]})"}
    right = np.array_equal(result, [2, 4, 6])
    return {"ok": bool(right), "detail": "a graph of one node ran" if right else f"1+1, 2+2, 3+3 gave {result}"}
