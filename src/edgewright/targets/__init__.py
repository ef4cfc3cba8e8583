"""Where a stage runs: the compile back ends by target name, and the platforms."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any, cast

from edgewright.errors import UsageError
from edgewright.plugins import TARGETS, load_plugin, nearest, plugin_names

if TYPE_CHECKING:
    from edgewright.targets.backend import Backend
    from edgewright.targets.platform import Platform

#: The targets that come with the toolkit, and the modules whose `BACKEND` they are, which are loaded only then.
_BUILT_IN = {
    "cpu": "edgewright.targets.cpu",
    "external": "edgewright.targets.external.backend",
    "openvino": "edgewright.targets.openvino",
    "qnn": "edgewright.targets.qnn",
    "tensorrt-edge-llm": "edgewright.targets.edgellm",
    "tensorrt": "edgewright.targets.tensorrt",
}
#: The packages that compile for them, whose versions decide over what is made.
_COMPILERS: dict[str, str] = {
    "openvino": "openvino",
    "qnn": "onnxruntime-qnn",
    "tensorrt": "tensorrt-rtx-cu12-bindings",
}
#: Targets of which more than the options' words decides, and the modules whose `goal_key` says what.
_TOLD = {
    "external": "edgewright.targets.external.asked",
    "tensorrt": "edgewright.targets.tensorrt.tool",
    "qnn": "edgewright.targets.qnn.options",
}


def target_names() -> tuple[str, ...]:
    """Return the names of all targets: those that come with the toolkit, then those of installed packages."""
    return tuple(dict.fromkeys((*_BUILT_IN, *plugin_names(TARGETS))))


def is_built_in(name: str) -> bool:
    """Whether a target comes with the toolkit."""
    return name in _BUILT_IN


def compiler_of(name: str) -> str | None:
    """Return the package on PyPI that compiles for a target of the toolkit's, None where it needs none of its own."""
    return _COMPILERS.get(name)


def find_target(name: str) -> Backend:
    """Return a target's back end.

    Raises UsageError with the nearest names for one that is unknown, PluginError for a package's that isn't one.
    """
    if name in _BUILT_IN:
        return cast("Backend", import_module(_BUILT_IN[name]).BACKEND)
    found = load_plugin(TARGETS, name)
    if found is None:
        raise UsageError(f"The target {name!r} is unknown; {nearest(name, target_names())}")
    from edgewright.targets.plugged import PluggedBackend

    return PluggedBackend(name, found)


def goal_key(target: str, platform: Platform | None, options: Mapping[str, str]) -> dict[str, Any]:
    """Return what of a target decides over a build, the version of its compiler included; loads no back end."""
    packages = [_COMPILERS[target]] if target in _COMPILERS else []
    if target not in _BUILT_IN:
        packages += [entry.dist.name for entry in metadata.entry_points(group=TARGETS, name=target) if entry.dist]
    told = {
        "platform": platform and platform.name,
        "options": dict(options),
        "compilers": {name: _version(name) for name in packages},
        "tool": import_module(_TOLD[target]).goal_key(platform, options) if target in _TOLD else None,
    }
    return {"target": target, **{name: value for name, value in told.items() if value}}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


__all__ = ["compiler_of", "find_target", "goal_key", "is_built_in", "target_names"]
