"""Large models are compared in groups of layers: where one group ends, the next reads what the last gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import TEXT_GOLDENS
from edgewright.build.pipeline import deploy
from edgewright.checkpoint import open_checkpoint
from edgewright.verify import verify_bundle


@pytest.mark.parametrize("case", ["qwen3", "gemma4_text", "mamba2", "qwen2_moe"])
@pytest.mark.parametrize("recipe", ["float32", "int4"])
def test_a_healthy_bundle_passes_in_small_groups(
    case: str, recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle"
    deploy(TEXT_GOLDENS / case, bundle, recipe=recipe, verify=False)
    monkeypatch.setattr("edgewright.verify.locate.BUDGET", 1)
    report = verify_bundle(bundle, open_checkpoint(TEXT_GOLDENS / case), threads=1)
    assert report.passed, report.reason()
