"""Writes YAML that people read, without a package for it."""

from __future__ import annotations

import json
import re
from typing import Any

#: Words that need no quotes in YAML, unless they mean something else there.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*", re.ASCII)
_MEANINGS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"})


def yaml_text(data: Any) -> str:
    """Return mappings, lists, texts, numbers, truths and None as YAML that `read_yaml` gives back.

    Mappings of mappings and lists of mappings stand in blocks, everything below them in one line. Texts are quoted, but
    for plain words. Raises ValueError for a number that is not finite and for other types.
    """
    return "".join(f"{line}\n" for line in _block(data, 2))


def _block(data: Any, levels: int) -> list[str]:
    lines = []
    for key, value in data.items():
        if levels > 1 and value and isinstance(value, dict) and all(isinstance(item, dict) for item in value.values()):
            lines += [f"{_scalar(key)}:", *(f"  {line}" for line in _block(value, levels - 1))]
        elif levels > 1 and value and isinstance(value, list | tuple) and all(isinstance(v, dict) for v in value):
            lines += [f"{_scalar(key)}:", *(f"  - {_flow(item)}" for item in value)]
        else:
            lines.append(f"{_scalar(key)}: {_flow(value)}")
    return lines


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _MEANINGS
        return value if plain else _quoted(value)
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)
    if not isinstance(value, float):
        raise ValueError(f"{type(value).__name__} has no place in YAML")
    text = json.dumps(value, allow_nan=False)
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}.0e{exponent}" if e and "." not in mantissa else text  # YAML takes 1e-05 for a text


def _quoted(text: str) -> str:
    """Return a text in double quotes with everything escaped that is not printable."""
    pieces = []
    for char in text:
        code = ord(char)
        if char in '"\\':
            pieces.append(f"\\{char}")
        elif char == "\n":
            pieces.append("\\n")
        elif char.isprintable() and code != 0xFEFF:
            pieces.append(char)
        else:
            pieces.append(
                f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
            )
    return f'"{"".join(pieces)}"'
