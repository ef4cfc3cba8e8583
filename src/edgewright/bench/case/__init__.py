"""Cases of several dialogs on one accelerator: how they are written, read, checked and planned.

Names are imported when they are asked for, so that a help text loads no engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewright.bench.case.check import require
    from edgewright.bench.case.files import Registry, read_registry
    from edgewright.bench.case.problems import CaseError, Problem
    from edgewright.bench.case.reading import read_cases
    from edgewright.bench.case.spec import Case, RunnerSpec
    from edgewright.bench.case.writer import to_yaml

__all__ = [
    "Case",
    "CaseError",
    "Problem",
    "Registry",
    "RunnerSpec",
    "read_cases",
    "read_registry",
    "require",
    "to_yaml",
]
_MODULES = {
    "Case": "spec",
    "CaseError": "problems",
    "Problem": "problems",
    "Registry": "files",
    "RunnerSpec": "spec",
    "read_cases": "reading",
    "read_registry": "files",
    "require": "check",
    "to_yaml": "writer",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
