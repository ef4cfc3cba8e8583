"""The verbs of the `edgewright` command, one file each; nothing heavy is imported before a verb runs."""

from edgewright.cli._main import main

__all__ = ["main"]
