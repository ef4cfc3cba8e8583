"""Where a stage runs: the compile back ends, by target name."""

from edgewright.targets.cpu import compile_stage

#: Target names and their compile functions.
TARGETS = {"cpu": compile_stage}

__all__ = ["TARGETS", "compile_stage"]
