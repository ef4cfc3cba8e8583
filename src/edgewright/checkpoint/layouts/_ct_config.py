"""The config of compressed-tensors: which module has which scheme."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewright.checkpoint.layouts.names import CLASS, PatternList
from edgewright.checkpoint.layouts.weights import json_int
from edgewright.errors import CheckpointError, UnsupportedFormatError

LAYOUT = "compressed-tensors"
_TYPES = ("int", "float")
_KINDS = {
    "int packed": ("pack-quantized",),
    "int": ("int-quantized", "naive-quantized"),
    "fp8": ("float-quantized", "naive-quantized"),
    "nvfp4": ("nvfp4-pack-quantized",),
    "mxfp4": ("mxfp4-pack-quantized",),
    "mxfp8": ("mxfp8-quantized", "float-quantized"),
}


@dataclass(frozen=True)
class Args:
    """How one tensor of a scheme is rounded."""

    bits: int
    type: str
    symmetric: bool
    strategy: str
    group: int | None
    block: tuple[int, int] | None
    dynamic: bool | str
    by_group: bool

    @property
    def label(self) -> str:
        """The scheme in words."""
        group = f" {self.group}" if self.group else ""
        signs = "" if self.symmetric else ", zero points"
        return f"{self.type}{self.bits} {self.strategy}{group}{signs}"


@dataclass(frozen=True)
class Scheme:
    """What a config group says: its format, its weights and what inputs are rounded to."""

    name: str
    format: str | None
    weights: Args
    inputs: Args | None
    outputs: Args | None

    @property
    def kind(self) -> str:
        """How weights are laid out, by type and bits: int, fp8, nvfp4, mxfp4 or mxfp8."""
        args = self.weights
        if args.type == "int":
            return "int"
        if args.bits == 8:
            return "mxfp8" if args.strategy == "group" and args.group == 32 else "fp8"
        if args.bits == 4 and args.strategy == "tensor_group" and args.group == 16:
            return "nvfp4"
        if args.bits == 4 and args.strategy == "group" and args.group == 32:
            return "mxfp4"
        raise UnsupportedFormatError(
            f"The config group {self.name} of the {LAYOUT} checkpoint has weights of {args.label}, which can't be "
            "read: take the unquantized checkpoint."
        )

    def need_format(self, module: str, kind: str) -> None:
        """Raise CheckpointError where the named format isn't what weights of a kind are stored in."""
        if self.format is not None and self.format not in _KINDS[kind]:
            raise CheckpointError(
                f"The config of the {LAYOUT} checkpoint says that {module} is {self.format}, but its tensors and its "
                f"scheme ({self.weights.label}) are {_KINDS[kind][0]}."
            )


@dataclass(frozen=True)
class Config:
    """All groups with what they target, what is left out, and the scheme of the cache."""

    groups: tuple[tuple[PatternList, Scheme], ...]
    ignore: PatternList
    cache: Args | None

    def scheme_of(self, module: str) -> Scheme | None:
        """Return the scheme of a module, or None for one that is left out. Raises CheckpointError on two schemes."""
        if self.ignore.rank(module) is not None:
            return None
        ranked = [(rank, scheme) for targets, scheme in self.groups if (rank := targets.rank(module)) is not None]
        if not ranked:
            return None
        best = min(rank for rank, _ in ranked)
        found = [scheme for rank, scheme in ranked if rank == best]
        if any(other.weights != found[0].weights or other.inputs != found[0].inputs for other in found):
            raise CheckpointError(
                f"The config groups {found[0].name} and {found[-1].name} of the {LAYOUT} checkpoint both target "
                f"{module} and differ: leave one of them."
            )
        return found[0]

    def names(self, module: str) -> bool:
        """Tell whether a target means a module by its name or a pattern, not by its class."""
        return any((rank := targets.rank(module)) is not None and rank < CLASS for targets, _ in self.groups)


def parse(config: Mapping[str, Any]) -> Config:
    """Return a parsed config. Raises CheckpointError on a damaged one, UnsupportedFormatError on what can't be read."""
    _refuse_extras(config)
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise CheckpointError(f"The config of the {LAYOUT} checkpoint has no config_groups: take another copy.")
    top = config.get("format")
    found = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise CheckpointError(f"The config group {name!r} of the {LAYOUT} checkpoint is no mapping.")
        targets = PatternList.parse(group.get("targets"), LAYOUT, regular=True)
        weights = _args(group.get("weights"), f"the weights of {name}")
        if weights is None:
            raise UnsupportedFormatError(
                f"The config group {name} of the {LAYOUT} checkpoint rounds {', '.join(targets.patterns)} without "
                "their weights, which can't be read: take the unquantized checkpoint."
            )
        sides = [_args(group.get(f"{side}_activations"), f"the {side}s of {name}") for side in ("input", "output")]
        fmt = group.get("format") or (None if top == "mixed-precision" else top)
        if fmt is not None and fmt not in {label for labels in _KINDS.values() for label in labels}:
            raise UnsupportedFormatError(
                f"The {LAYOUT} checkpoint stores {name} as {fmt!r}, which can't be read: take the unquantized "
                "checkpoint."
            )
        found.append((targets, Scheme(str(name), fmt, weights, *sides)))
    ignore = PatternList.parse(config.get("ignore") or [], LAYOUT, regular=True)
    return Config(tuple(found), ignore, _args(config.get("kv_cache_scheme"), "kv_cache_scheme"))


def _refuse_extras(config: Mapping[str, Any]) -> None:
    """Refuse what changes values beyond the schemes."""
    status = config.get("quantization_status", "compressed")
    if status != "compressed":
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint has the status {status!r}, where its weights aren't compressed: save it "
            "compressed first."
        )
    sparsity = config.get("sparsity_config") or {}
    if not isinstance(sparsity, Mapping) or sparsity.get("format", "dense") != "dense":
        raise UnsupportedFormatError(f"The {LAYOUT} checkpoint is sparse, which can't be read: take the dense one.")
    if config.get("transform_config"):
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint has a transform_config (rotations at run time), which can't be read: take one "
            "without."
        )


def _args(data: Any, what: str) -> Args | None:
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise CheckpointError(f"The {LAYOUT} checkpoint describes {what} by {data!r} where a mapping is needed.")
    kind, bits = data.get("type", "int"), json_int(data.get("num_bits", 8), f"num_bits of {what}")
    group = data.get("group_size")
    group = None if group in (None, -1) else json_int(group, f"group_size of {what}")
    strategy = data.get("strategy") or ("channel" if group is None and data.get("group_size") == -1 else None)
    strategy = strategy or ("tensor" if group is None else "group")
    bad = kind not in _TYPES or not 1 <= bits <= 8 or (group is not None and group < 1) or not isinstance(strategy, str)
    if bad or (strategy in ("group", "tensor_group") and group is None):
        raise CheckpointError(f"The {LAYOUT} checkpoint describes {what} in a way that makes no sense: {dict(data)}.")
    dynamic = data.get("dynamic", False)
    order = data.get("actorder")
    if order not in (None, False, True, "weight", "static", "group", "dynamic"):
        raise UnsupportedFormatError(f"The {LAYOUT} checkpoint has the actorder {order!r}, which is unknown.")
    block = _block(data.get("block_structure"), what)
    return Args(
        bits,
        kind,
        bool(data.get("symmetric", True)),
        strategy,
        group,
        block,
        dynamic,
        order in (True, "group", "dynamic"),
    )


def _block(data: Any, what: str) -> tuple[int, int] | None:
    if data is None:
        return None
    sizes: Sequence[Any] = re.findall(r"\d+", data) if isinstance(data, str) else data
    try:
        tall, wide = (int(size) for size in sizes)
    except (TypeError, ValueError):
        raise CheckpointError(f"The {LAYOUT} checkpoint gives the blocks of {what} as {data!r}.") from None
    return tall, wide


__all__ = ["LAYOUT", "Args", "Config", "Scheme", "parse"]
