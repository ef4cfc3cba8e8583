"""Goldens: token ids and the logits that another program computed for them, and the comparison with them.

A golden is a folder with `case.json` and `expected.npz`. The arrays, all but the first two optional: `ids` int64
`[1, n]`; `logits` float32 `[n, vocab]`; `decode_logits` float32 `[m, vocab]`, of the last m positions computed one by
one; `ids_b` int64 `[batch, n]` and `logits_b` float32 `[batch, n, vocab]`; `pad_b` int64 `[batch]` and `logits_p` as
`logits_b`, the same batch with so many tokens of padding before it, which a runtime without padding has no use for.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.errors import GoldenError
from edgewright.verify.scenarios import Logits, Scenario, Step

EXPECTED, CASE = "expected.npz", "case.json"
#: The version of the layout; case files without one have the first.
SCHEMA = 1
#: dtype and rank of every array.
_ARRAYS = {
    "ids": ("int64", 2),
    "logits": ("float32", 2),
    "decode_logits": ("float32", 2),
    "ids_b": ("int64", 2),
    "logits_b": ("float32", 3),
    "pad_b": ("int64", 1),
    "logits_p": ("float32", 3),
}


@dataclass(frozen=True)
class Golden:
    """A golden, read and checked."""

    path: Path
    case: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]

    @property
    def vocab(self) -> int:
        """Width of the logits."""
        return int(self.arrays["logits"].shape[1])

    def scripts(self) -> Iterator[tuple[Scenario, Logits]]:
        """Yield the scenarios of the golden with the logits `[rows, vocab]` they must give."""
        ids, n = self.arrays["ids"][0], self.arrays["ids"].shape[1]
        yield Scenario("prefill", (ids,), 0, (Step((ids,), True),)), self.arrays["logits"]
        late = self.arrays.get("decode_logits")
        if late is not None:
            first = n - len(late)
            start = [Step((ids[:first],), False)] if first else []
            singles = [Step((ids[i : i + 1],), True) for i in range(first, n)]
            yield Scenario("decode", (ids,), first, (*start, *singles)), late
        if "ids_b" in self.arrays:
            rows = tuple(self.arrays["ids_b"])
            logits = self.arrays["logits_b"].reshape(-1, self.vocab)
            yield Scenario("batch", rows, 0, (Step(rows, True),)), logits


def is_golden(folder: Path) -> bool:
    """Tell whether a folder is meant as a golden."""
    return (folder / EXPECTED).is_file()


def read_golden(folder: Path) -> Golden:
    """Read a golden; raises GoldenError that names what another schema has."""

    def refuse(what: str) -> GoldenError:
        return GoldenError(f"The golden {folder} {what}: make it again with this version's generator.")

    try:
        case = json.loads((folder / CASE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise refuse(f"has no {CASE}") from None
    except ValueError:
        raise refuse(f"has a {CASE} that is not JSON") from None
    schema = case.get("schema", SCHEMA) if isinstance(case, dict) else None
    if schema != SCHEMA:
        raise refuse(f"has the schema {schema} and this version reads {SCHEMA}")
    try:
        with np.load(folder / EXPECTED, allow_pickle=False) as data:
            arrays = dict(data)
    except (OSError, ValueError, zipfile.BadZipFile, KeyError):
        raise refuse(f"has an {EXPECTED} that can't be read") from None
    if missing := [name for name in ("ids", "logits") if name not in arrays]:
        raise refuse(f"lacks the arrays {', '.join(missing)}")
    if unknown := sorted(set(arrays) - set(_ARRAYS)):
        raise refuse(f"holds the arrays {', '.join(unknown)}, which this version doesn't know")
    for name, array in arrays.items():
        dtype, rank = _ARRAYS[name]
        if array.dtype != dtype or array.ndim != rank:
            raise refuse(f"has {name} as {array.dtype} of rank {array.ndim} where {dtype} of rank {rank} is needed")
    if problem := _shapes(arrays):
        raise refuse(problem)
    return Golden(folder, case, arrays)


def _shapes(arrays: Mapping[str, np.ndarray]) -> str:
    """Return in words which shapes don't fit each other; empty when all do."""
    n, vocab = arrays["logits"].shape
    if arrays["ids"].shape != (1, n) or n == 0:
        return f"has ids of shape {list(arrays['ids'].shape)} for logits of {n} positions"
    if ("ids_b" in arrays) != ("logits_b" in arrays):
        return "has only one of ids_b and logits_b"
    if "ids_b" in arrays and arrays["logits_b"].shape != (*arrays["ids_b"].shape, vocab):
        return "has ids_b and logits_b of shapes that don't fit"
    late = arrays.get("decode_logits")
    if late is not None and (late.shape[1] != vocab or not 0 < len(late) <= n):
        return f"has decode_logits of shape {list(late.shape)}"
    ids = np.concatenate([arrays[name].ravel() for name in ("ids", "ids_b") if name in arrays])
    if ids.min() < 0 or ids.max() >= vocab:
        return "has token ids outside its vocabulary"
    return "" if all(np.isfinite(a).all() for a in arrays.values()) else "holds values that are not finite"
