"""What this package takes and refuses is what the real library takes and refuses, over some thousand configurations."""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edgewright.errors import GenieError
from edgewright.genie.checks import problems
from edgewright.genie.document import parse

GOLDENS = Path(__file__).parent.parent / "goldens"
TOOLS = Path(__file__).parent.parent.parent / "tools" / "goldens"
#: Of the live comparison, which takes 20 ms a configuration: others than the recorded ones.
COUNT, SEED = 250, 61


def lines() -> list[dict[str, Any]]:
    with gzip.open(GOLDENS / "genie" / "verdicts.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def taken_here(kind: Any, text: str) -> bool:
    try:
        return not problems(parse(text), kind)
    except GenieError:
        return False


def test_every_recorded_verdict() -> None:
    head, *verdicts = lines()
    assert head["library"] == "1.21.0"
    wrong = [one for one in verdicts if taken_here(one["kind"], one["text"]) is not one["taken"]]
    assert not wrong, [(one["kind"], one["taken"], one["text"]) for one in wrong[:3]]


def test_the_verdicts_are_many_and_of_both_sorts() -> None:
    _, *verdicts = lines()
    found = Counter((one["kind"], one["taken"]) for one in verdicts)
    kinds = ("dialog", "embedding", "engine", "sampler", "node", "profile")
    assert all(found[kind, taken] >= 3 for kind in kinds for taken in (True, False)), found
    assert found["dialog", True] > 100
    assert found["dialog", False] > 400


def test_text_that_is_no_json_has_the_status_for_it() -> None:
    _, *verdicts = lines()
    for one in verdicts:
        if one["status"] == -7:
            with pytest.raises(GenieError, match=r"not JSON"):
                parse(one["text"])


def test_the_library_itself() -> None:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("the package onnxruntime-qnn, which has libGenie, is not installed")
    command = [sys.executable, TOOLS / "make_genie_verdicts.py", "--print", f"--count={COUNT}", f"--seed={SEED}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    verdicts = [json.loads(line) for line in printed.splitlines()]
    assert len(verdicts) > COUNT
    wrong = [one for one in verdicts if taken_here(one["kind"], one["text"]) is not one["taken"]]
    assert not wrong, wrong[:3]
