"""Small YAML files that a user writes: one mapping, every key once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from edgewright.checkpoint.text import shown
from edgewright.errors import UsageError

_MOST_BYTES = 1 << 16


def read_mapping(path: Path, what: str, *, texts: bool = False) -> dict[str, Any]:
    """Return the mapping of a YAML file of `what`, such as "limits"; {} where the file is empty.

    With `texts` all values stay as they are written. Raises UsageError for a file that can't be read, is too large, is
    no YAML, no mapping of texts, or has a key twice.
    """
    loader = yaml.BaseLoader if texts else yaml.SafeLoader
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path.name} is too large to be a file of {what}: give a few lines of YAML.")
        text = path.read_text(encoding="utf-8")
        reader = loader(text)
        node = reader.get_single_node()
        values = {} if node is None else reader.construct_document(node)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise UsageError(f"The {what} {shown(str(path))} can't be read ({reason}): give a YAML file.") from None
    except (yaml.YAMLError, RecursionError, ValueError, ArithmeticError) as error:
        raise UsageError(f"{path.name} is not valid YAML ({shown(' '.join(str(error).split()))}).") from None
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode) or not all(isinstance(key, str) for key in values):
        raise UsageError(f"{path.name} is no list of `name: value` lines, as {what} are: write one a line.")
    names = [key.value for key, _ in node.value]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{path.name} has {shown(twice[0])} twice: keep one.")
    return dict(values)
