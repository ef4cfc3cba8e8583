"""The config of GPTQ checkpoints: which module has how many bits in which groups, and how zero points are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgewright.checkpoint.layouts.listed import choice, flag
from edgewright.checkpoint.layouts.names import PatternList
from edgewright.checkpoint.layouts.weights import json_int
from edgewright.errors import CheckpointError, UnsupportedFormatError

LAYOUT = "GPTQ"
AUTO_ROUND = "auto-round"
BITS = (2, 3, 4, 8)
_TAKE = "take the unquantized checkpoint."
#: Keys that change what the numbers mean, with the values that don't.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "pack_dtype": (None, "int32"),
    "is_marlin_format": (None, False),
    "rotation": (None, False, ""),
    "adapter": (None, False),
    "method": (None, "gptq"),
    "data_type": (None, "int"),
    "act_bits": (None, 16, 32),
}
_PACKINGS = ("auto_round:auto_gptq", "auto_round:gptq")


@dataclass(frozen=True)
class Scheme:
    """How the weights of a module are stored; `group` None is a whole row."""

    bits: int
    group: int | None
    symmetric: bool
    ordered: bool

    @property
    def label(self) -> str:
        """The scheme in words."""
        words = [f"{self.bits} bits", "channel" if self.group is None else f"group {self.group}"]
        words += [] if self.symmetric else ["zero points"]
        return " ".join(words + (["activation order"] if self.ordered else []))


@dataclass(frozen=True)
class Config:
    """The scheme of all modules, what differs by module, and what stored zero points mean.

    `offsets` are what may have to be added to a stored zero point: one value, or two that only symmetric weights can
    tell apart. `trusted` says that the tool is known to borrow between zero points as reading them undoes.
    """

    scheme: Scheme
    head: bool
    offsets: tuple[int, ...]
    trusted: bool
    rules: tuple[tuple[bool, PatternList, Mapping[str, Any]], ...]
    only: frozenset[str]

    def scheme_of(self, module: str) -> Scheme | None:
        """Return the scheme of a module, or None for one that is left out. Raises CheckpointError."""
        if module.rpartition(".")[2] == "lm_head" and not self.head:
            return None
        for taken, patterns, changes in self.rules:
            if patterns.rank(module) is not None:
                return _changed(self.scheme, changes, module) if taken else None
        if self.only and not any(module == name or module.endswith(f".{name}") for name in self.only):
            return None
        return self.scheme


def parse(config: Mapping[str, Any]) -> Config:
    """Return a parsed config. Raises CheckpointError on a damaged one, UnsupportedFormatError on what can't be read."""
    for key, fine in _PLAIN.items():
        if config.get(key) not in fine:
            raise UnsupportedFormatError(
                f"The config of the {LAYOUT} checkpoint has {key} {config[key]!r}, which can't be read: {_TAKE}"
            )
    auto_round = config.get("quant_method") == AUTO_ROUND
    symmetric = flag(config, "sym", LAYOUT, default=True)
    scheme = _changed(
        Scheme(4, None, symmetric, flag(config, "desc_act", LAYOUT, default=False)),
        {key: config.get(key) for key in ("bits", "group_size")},
        "the config",
    )
    rules = _extra(config) if auto_round else _dynamic(config)
    head = flag(config, "lm_head", LAYOUT, default=False) or any(
        r[0] and r[1].rank("lm_head") is not None for r in rules
    )
    offsets = _packing(config, symmetric=symmetric) if auto_round else (_version(config),)
    quantizer = str((config.get("meta") or {}).get("quantizer", "")) if isinstance(config.get("meta"), Mapping) else ""
    return Config(scheme, head, offsets, "gptqmodel" in quantizer.lower(), rules, _only(config))


def _version(config: Mapping[str, Any]) -> int:
    """Return what is to be added to stored zero points: 1, or 0 for version 2."""
    name = config.get("checkpoint_format")
    name = choice(config, "format", "gptq") if name is None else name
    if name not in ("gptq", "gptq_v2"):
        raise UnsupportedFormatError(f"The {LAYOUT} checkpoint is stored as {name!r}, which can't be read: {_TAKE}")
    return 0 if name == "gptq_v2" else 1


def _packing(config: Mapping[str, Any], *, symmetric: bool) -> tuple[int, ...]:
    packing = config.get("packing_format")
    if packing not in _PACKINGS:
        raise UnsupportedFormatError(
            f"The AutoRound checkpoint is packed as {packing!r}, which can't be read (known is {_PACKINGS[0]}): {_TAKE}"
        )
    if not symmetric:
        raise UnsupportedFormatError(
            "The AutoRound checkpoint has zero points, and its packing does not say whether one was subtracted from "
            "them: export it in the format auto_gptq."
        )
    return (0, 1)


def _dynamic(config: Mapping[str, Any]) -> tuple[tuple[bool, PatternList, Mapping[str, Any]], ...]:
    """Return the overrides by pattern: whether the modules are quantized, which, and how."""
    dynamic = choice(config, "dynamic", {})
    if not isinstance(dynamic, Mapping) or not all(isinstance(changes, Mapping) for changes in dynamic.values()):
        raise CheckpointError(f"The config of the {LAYOUT} checkpoint has a dynamic that maps no patterns to settings.")
    found = []
    for pattern, changes in dynamic.items():
        text = str(pattern).removeprefix("-:").removeprefix("+:")
        listed = PatternList.parse([f"re:{text}"], LAYOUT, regular=True)
        found.append((not str(pattern).startswith("-:"), listed, changes))
    return tuple(found)


def _extra(config: Mapping[str, Any]) -> tuple[tuple[bool, PatternList, Mapping[str, Any]], ...]:
    """Return AutoRound's settings by module; 16 bits are floats."""
    extra = choice(config, "extra_config", {})
    if not isinstance(extra, Mapping) or not all(isinstance(changes, Mapping) for changes in extra.values()):
        raise CheckpointError(
            "The config of the AutoRound checkpoint has an extra_config that maps no names to settings."
        )
    found = []
    for name, changes in extra.items():
        if "sym" in changes and changes["sym"] is not True:
            raise UnsupportedFormatError(f"The AutoRound checkpoint stores {name} with zero points: {_TAKE}")
        floats = isinstance(bits := changes.get("bits"), int) and bits >= 16
        found.append((not floats, PatternList.parse([str(name)], AUTO_ROUND, regular=False), changes))
    return tuple(found)


def _only(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the names inside a layer that are quantized, or nothing where all linears are."""
    blocks = choice(config, "modules_in_block_to_quantize", [])
    names = (
        [name for block in blocks for name in (block if isinstance(block, list) else [block])]
        if isinstance(blocks, list)
        else [None]
    )
    if not all(isinstance(name, str) for name in names):
        raise CheckpointError(
            f"The config of the {LAYOUT} checkpoint has a modules_in_block_to_quantize that is no list of names."
        )
    return frozenset(names)  # type: ignore[arg-type]


def _changed(scheme: Scheme, changes: Mapping[str, Any], what: str) -> Scheme:
    """Return a scheme with some settings replaced. Raises UnsupportedFormatError on bits or groups it can't have."""
    bits = json_int(choice(changes, "bits", scheme.bits), f"bits of {what}")
    group = json_int(
        choice(changes, "group_size", -1 if scheme.group is None else scheme.group), f"group_size of {what}"
    )
    if bits not in BITS or (group < 1 and group != -1):
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint gives {what} {bits} bits in groups of {group}, which can't be read: {_TAKE}"
        )
    for key in ("sym", "desc_act"):
        flag(changes, key, LAYOUT, default=False)
    return replace(
        scheme,
        bits=bits,
        group=None if group == -1 else group,
        symmetric=bool(choice(changes, "sym", scheme.symmetric)),
        ordered=bool(choice(changes, "desc_act", scheme.ordered)),
    )
