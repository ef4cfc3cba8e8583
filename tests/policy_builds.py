"""Bundles of the golden policies made by `deploy`, shared by the tests that look at them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.build import sources
from edgewright.build.pipeline import Built, deploy, export
from edgewright.build.sources import PolicyRequest
from edgewright.checkpoint.policy import PolicyCheckpoint, PolicyOptions, open_policy
from edgewright.checkpoint.tensor import StoredTensor
from policy_goldens import OPTIONS, POLICY_GOLDENS

Change = Callable[[PolicyCheckpoint], PolicyCheckpoint]


def request_for(case: str, features: Mapping[str, bool | str] | None = None, **options: Any) -> PolicyRequest:
    """Return what a golden's checkpoint has to be told, with more options."""
    return PolicyRequest(PolicyOptions(**{**OPTIONS[case], **options}), features or {})


def source_of(case: str) -> Path:
    return POLICY_GOLDENS / case / "checkpoint"


def deploy_policy(case: str, output: Path, recipe: Any = "float32", **more: Any) -> Built:
    """Deploy a golden's checkpoint, by default without verification."""
    asked = more.pop("policy", None) or request_for(case)
    return deploy(source_of(case), output, recipe=recipe, policy=asked, **{"verify": False, **more})


def export_policy(case: str, output: Path, **more: Any) -> Built:
    return export(source_of(case), output, policy=request_for(case), **more)


def deploy_changed(
    monkeypatch: pytest.MonkeyPatch, case: str, output: Path, change: Change, recipe: str = "float32", **more: Any
) -> Built:
    """Deploy what `change` makes of a golden's checkpoint, as a defect of the build would."""
    with monkeypatch.context() as patch:
        patch.setattr(sources, "open_policy", lambda path, options: change(open_policy(path, options)))
        return deploy_policy(case, output, recipe, **more)


class Changed(StoredTensor):
    """A stored tensor with other values."""

    def __init__(self, source: StoredTensor, values: np.ndarray) -> None:
        self.name, self.shape, self.dtype = source.name, source.shape, "float32"
        self.nbytes, self._values = 4 * values.size, np.ascontiguousarray(values, np.float32)

    def rows(self, start: int, stop: int) -> np.ndarray:
        return self._values[start:stop]

    def raw(self, start: int, stop: int) -> np.ndarray:
        return self._values[start:stop].view(np.uint8).reshape(stop - start, -1)


def with_tensor(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Return a change of one tensor's values."""

    def changed(checkpoint: PolicyCheckpoint) -> PolicyCheckpoint:
        (full,) = [key for key in checkpoint.tensors if key.endswith(name)]
        stored = checkpoint.tensors[full]
        values = change(np.asarray(stored.read()).astype(np.float32))
        return dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, full: Changed(stored, values)})

    return changed


def with_spec(**values: Any) -> Change:
    """Return a change of the spec."""
    return lambda checkpoint: dataclasses.replace(checkpoint, spec=dataclasses.replace(checkpoint.spec, **values))
