"""Which modules a config means: exact names, patterns, classes; what a plain weight must be."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edgewright.errors import CheckpointError, UnsupportedFormatError

#: How well a pattern fits: exact names before patterns before classes.
EXACT, PATTERN, CLASS = 0, 1, 2
_TABLE = re.compile(r"(.*\.)?(embed_tokens|wte|word_embeddings|embeddings?|embed_in|tok_embeddings)")
_LINEAR = re.compile(r"(.*\.)?(\w+_proj|fc_?\d?|lm_head|query_key_value|dense\w*|w[1-4])")
_WRAPPERS = ("model.language_model.", "language_model.model.", "model.", "language_model.")
_LONGEST_PATTERN, _MOST_REPEATS = 500, 8
_NESTED = re.compile(r"\([^()]*[*+}][^()]*\)[*+{]")


@dataclass(frozen=True)
class PatternList:
    """Names, patterns and classes of a config; `regular` patterns begin with `re:`, others have wildcards."""

    patterns: tuple[str, ...]
    compiled: tuple[re.Pattern[str] | None, ...]

    @staticmethod
    def parse(data: Any, layout: str, *, regular: bool) -> PatternList:
        """Return a parsed list. Raises CheckpointError on other things than a list of usable patterns."""
        if not isinstance(data, list) or not all(isinstance(entry, str) for entry in data):
            raise CheckpointError(
                f"The config of the {layout} checkpoint has {data!r} where a list of names is needed."
            )
        compiled = tuple(_compiled(entry, layout, regular=regular) for entry in data)
        return PatternList(tuple(data), compiled)

    def rank(self, module: str) -> int | None:
        """Return how a module is meant (EXACT, PATTERN or CLASS), or None where it is not."""
        names = tuple(_spellings(module))
        if any(name in self.patterns for name in names):
            return EXACT
        if any(pattern.match(name) for pattern in self.compiled if pattern is not None for name in names):
            return PATTERN
        return CLASS if module_class(module) in self.patterns else None


def _compiled(entry: str, layout: str, *, regular: bool) -> re.Pattern[str] | None:
    if regular and not entry.startswith("re:"):
        return None
    if not regular and not any(mark in entry for mark in "*?["):
        return None
    text = entry.removeprefix("re:") if regular else fnmatch.translate(entry)
    repeats = sum(text.count(mark) for mark in "*+{")
    if len(text) > _LONGEST_PATTERN or repeats > _MOST_REPEATS or _NESTED.search(text):
        raise UnsupportedFormatError(
            f"The config of the {layout} checkpoint has the pattern {entry[:60]!r}, which may take forever to match: "
            "write the names instead."
        )
    try:
        return re.compile(text)
    except re.error:
        raise CheckpointError(
            f"The config of the {layout} checkpoint has the pattern {entry!r}, which is none."
        ) from None


def _spellings(module: str) -> Iterator[str]:
    """Yield a module's name and those it has inside other wrappers of the same model."""
    yield module
    for wrapper in _WRAPPERS:
        if module.startswith(wrapper):
            inner = module.removeprefix(wrapper)
            yield inner
            yield from (other + inner for other in _WRAPPERS if other != wrapper)
            return


def module_class(module: str) -> str:
    """Return the class a module with a quantized weight has: Embedding by its name, else Linear."""
    return "Embedding" if _TABLE.fullmatch(module) else "Linear"


def surely_linear(module: str) -> bool:
    """Tell whether a module's name is one that linears have."""
    return _LINEAR.fullmatch(module) is not None


def without_numbers(module: str) -> str:
    """Return a name with its layer and expert numbers taken out: the same for modules of one kind."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", module)
