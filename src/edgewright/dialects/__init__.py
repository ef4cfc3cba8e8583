"""How a target spells a graph: one file per dialect, each a function from a stage to a lowered stage."""

from collections.abc import Callable
from typing import Any

from edgewright.dialects import edgellm, onnx_qdq, onnxruntime, openvino, portable, qnn, tensorrt
from edgewright.errors import PluginError, UsageError
from edgewright.graph import Stage
from edgewright.plugins import DIALECTS, defects_named, load_plugin, nearest, package_of, plugin_names

Lowering = Callable[[Stage], Stage]

#: The dialects that come with the toolkit, and their lowerings.
LOWERINGS: dict[str, Lowering] = {
    "portable": portable.lower,
    "onnx-qdq": onnx_qdq.lower,
    "onnxruntime": onnxruntime.lower,
    "openvino": openvino.lower,
    "qnn": qnn.lower,
    "tensorrt": tensorrt.lower,
    "tensorrt-edge-llm": edgellm.lower,
}


def find_lowering(name: str) -> Lowering:
    """Return a dialect's lowering; raises UsageError for an unknown one, PluginError for a damaged package's."""
    if name in LOWERINGS:
        return LOWERINGS[name]
    found = load_plugin(DIALECTS, name)
    if found is None:
        known = (*LOWERINGS, *plugin_names(DIALECTS))
        raise UsageError(f"The dialect {name!r} is unknown; {nearest(name, known)}")
    return _plugged(name, found)


def _plugged(name: str, found: Any) -> Lowering:
    """Return another package's lowering as one whose defects are PluginErrors that name it."""
    whose = f"The dialect {name} of the package {package_of(DIALECTS, name)}"
    if not callable(found):
        raise PluginError(f"{whose} is no function: update the package.")

    def lower(stage: Stage) -> Stage:
        with defects_named(whose):
            lowered = found(stage)
        if not isinstance(lowered, Stage):
            raise PluginError(f"{whose} gives {type(lowered).__name__}, where a stage is needed: update the package.")
        return lowered

    return lower


__all__ = ["LOWERINGS", "Lowering", "find_lowering", "onnx_qdq", "onnxruntime", "openvino", "portable", "tensorrt"]
