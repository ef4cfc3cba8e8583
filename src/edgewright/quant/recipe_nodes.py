"""The YAML of recipes: trees whose mistakes are RecipeErrors."""

from __future__ import annotations

from edgewright import nodes
from edgewright.errors import RecipeError
from edgewright.nodes import Node

__all__ = ["Node", "read_yaml"]


def read_yaml(text: str, source: str) -> Node:
    """Parse YAML without making objects; raises RecipeError with the line."""
    return nodes.read_yaml(text, source, RecipeError)
