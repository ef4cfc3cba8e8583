"""Lists of modules that a tool left in floats: names, parts of names, and wildcards, part by part."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewright.errors import CheckpointError


@dataclass(frozen=True)
class Listed:
    """Names taken apart at the dots: those that mean themselves, and those with wildcards in their parts."""

    exact: frozenset[tuple[str, ...]]
    patterns: tuple[tuple[str, ...], ...]

    def __contains__(self, module: str) -> bool:
        """Tell whether a module, or one it is part of, is listed: by its whole name or by neighbouring parts of it.

        `mlp.gate` means `model.layers.0.mlp.gate` and what is inside of it, but not `model.layers.0.mlp.gate_proj`.
        """
        parts = tuple(module.split("."))
        if self.exact:
            ends = range(1, len(parts) + 1)
            if any(parts[start:end] in self.exact for end in ends for start in range(end)):
                return True
        return any(
            all(map(fnmatch.fnmatchcase, parts[start:], names))
            for names in self.patterns
            for start in range(len(parts) - len(names) + 1)
        )


def left_out(config: Mapping[str, Any], layout: str, *keys: str) -> Listed:
    """Return the modules that a config lists under `keys` as not converted.

    Raises CheckpointError on other things than a list of names.
    """
    found: list[tuple[str, ...]] = []
    for key in keys:
        listed = config.get(key) or []
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise CheckpointError(
                f"The config of the {layout} checkpoint has {listed!r} as {key} where a list of names is needed."
            )
        found += [tuple(name.strip(".").split(".")) for name in listed if name.strip(".")]
    wild = [names for names in found if any(mark in part for part in names for mark in "*?[")]
    return Listed(frozenset(found) - frozenset(wild), tuple(wild))


def need_converted(module: str, listed: Listed, layout: str) -> None:
    """Raise CheckpointError for a quantized module that the config lists as not converted."""
    if module in listed:
        raise CheckpointError(
            f"The config of the {layout} checkpoint lists {module} as not converted, but the file holds it quantized: "
            "they don't belong together, take another copy."
        )


def choice(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return a value of a config; one that is absent or null is `default`."""
    value = config.get(key)
    return default if value is None else value


def flag(config: Mapping[str, Any], key: str, layout: str, *, default: bool) -> bool:
    """Return true or false of a config. Raises CheckpointError on anything else."""
    value = choice(config, key, default)
    if not isinstance(value, bool):
        raise CheckpointError(
            f"The config of the {layout} checkpoint gives {key} as {value!r}, which is no truth value."
        )
    return value
