"""Planted faults: a part of the scoreboard's is planted here, and the scoreboard itself must meet its bounds."""

from __future__ import annotations

import re
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "faults"))

from catalog import GENERATORS, faults  # noqa: E402
from fault import Fault  # noqa: E402
from score import BEGIN, END, PAGE, judge  # noqa: E402

#: Golden cases that have something of everything, small and quick to build.
CASES = ("gemma2", "llama_bias", "mamba2", "mistral_window", "mixtral", "qwen3")


def sample() -> list[Fault]:
    """One fault of each class over the cases."""
    by_kind: dict[str, list[Fault]] = {}
    for fault in faults(CASES):
        by_kind.setdefault(fault.kind, []).append(fault)
    return [
        fault
        for kind in sorted(by_kind)
        for fault in sorted(by_kind[kind], key=lambda f: zlib.crc32(f.name.encode()))[:1]
    ]


@pytest.mark.parametrize("fault", sample(), ids=lambda fault: fault.name.replace(" ", "_"))
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    result = judge(fault, tmp_path / "bundle")
    assert result.caught, result.said
    assert result.layer, result.said
    assert result.kind, result.said


def rows() -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8")
    (board,) = re.findall(re.escape(BEGIN) + "(.*?)" + re.escape(END), text, re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in board.splitlines() if line[:1] == "|"][2:]


def test_the_scoreboard_meets_its_bounds() -> None:
    counts = {name: [int(n) for n in numbers] for name, *numbers in rows()}
    planted, caught, layer, kind = counts.pop("all")
    assert [sum(column) for column in zip(*counts.values(), strict=True)] == [planted, caught, layer, kind]
    assert planted >= 150
    assert caught == planted
    assert layer >= 0.95 * planted
    assert kind >= 0.90 * planted
    text = PAGE.read_text(encoding="utf-8")
    families = re.search(r"in bundles of (\d+) families", text)
    healthy = re.search(r"Healthy bundles verified: (\d+), failed: (\d+)", text)
    assert families is not None
    assert healthy is not None
    assert int(families[1]) >= 10
    assert int(healthy[1]) >= 20
    assert healthy[2] == "0"


def test_every_class_is_planted_and_every_generator_is_described() -> None:
    from edgewright.verify.cause import CLASSES

    assert {name for name, *_ in rows()} - {"all"} == set(CLASSES) - {"wiring"}
    text = PAGE.read_text(encoding="utf-8")
    for generator in GENERATORS:
        assert f"`{generator.__name__}`" in text
