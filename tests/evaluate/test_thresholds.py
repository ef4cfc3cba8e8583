"""Bounds on figures: read strictly, judged in the right direction, never passed when not measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewright.errors import UsageError
from edgewright.evaluate.thresholds import judge, read_thresholds

FIGURES = {"mae": 0.1, "jump": None, "gripper_agreement": 0.9, "not_finite": 0}


def test_both_spellings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bounds.yaml"
    path.write_text("# what a policy must reach\nmae: 0.05\ngripper_agreement: 9.5e-1\n")
    wanted = {"mae": 0.05, "gripper_agreement": 0.95}
    assert read_thresholds(str(path), pair=False) == wanted
    assert read_thresholds("mae=0.05, gripper_agreement = .95", pair=False) == wanted
    assert read_thresholds("difference=1e-3", pair=True) == {"difference": 0.001}
    path.write_text("")
    assert read_thresholds(str(path), pair=False) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("mea: 1", "unknown figure 'mea'; the figures are mae, mse"),
        ("mae: 1\nmae: 2", "'mae' twice"),
        ("mae: much", "'much' as bound on mae"),
        ("mae: .nan", "bound on mae"),
        ("mae: inf", "bound on mae"),
        ("difference: 1", "compares two bundles"),
        ("- mae", "no list of"),
        ("mae: {most: 1}", "as bound on mae"),
        ("mae: [", "not valid YAML"),
        ("a: &x [*x]", "not valid YAML|no list of"),
        ("mae: 1\n---\nmae: 2", "not valid YAML"),
        ("x" * 70_000, "too large"),
        ("\x00", "not valid YAML"),
    ],
)
def test_wrong_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bounds.yaml"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_thresholds(str(path), pair=False)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mea=1", "--thresholds has a bound on the unknown figure"),
        ("mae=1,mae=2", "two bounds"),
        ("mae=1,,", "unknown figure ''"),
        ("mae=", "'' as bound"),
        ("nowhere.yaml", "can't be read"),
    ],
)
def test_wrong_words_are_refused(spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        read_thresholds(spec, pair=False)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bounds.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UsageError, match="no UTF-8 text"):
        read_thresholds(str(tmp_path / "bounds.yaml"), pair=False)


@pytest.mark.parametrize(
    ("bounds", "status", "reasons"),
    [
        ({}, "not checked", []),
        ({"mae": 0.1}, "passed", []),
        ({"mae": 0.0999}, "failed", ["a: mae 0.1 > 0.0999"]),
        ({"gripper_agreement": 0.9}, "passed", []),
        ({"gripper_agreement": 0.95}, "failed", ["a: gripper_agreement 0.9 < 0.95"]),
        ({"jump": 1}, "not checked", ["a: jump could not be measured here"]),
        ({"jump": 1, "mae": 0.01}, "failed", ["a: mae 0.1 > 0.01", "a: jump could not be measured here"]),
    ],
)
def test_verdicts(bounds: dict[str, float], status: str, reasons: list[str]) -> None:
    found = judge(bounds, [("a", FIGURES)], None)
    assert (found.status, list(found.reasons)) == (status, reasons)
    assert found.passed is not bool(reasons)


def test_every_policy_and_the_pair_are_judged() -> None:
    policies = [("a", FIGURES), ("b", {**FIGURES, "mae": 0.2})]
    pair = {"difference": 0.03, "mae_increase": {"mean": 0.1, "low": 0.05, "high": 0.15, "over": "frames"}}
    found = judge({"mae": 0.15, "difference": 0.02, "mae_increase": 0.12}, policies, pair)
    assert found.reasons == (
        "b: mae 0.2 > 0.15",
        "the pair: difference 0.03 > 0.02",
        "the pair: mae_increase 0.15 > 0.12",
    )
    assert judge({"mae": 0.2, "difference": 0.03, "mae_increase": 0.15}, policies, pair).status == "passed"
    assert judge({}, [("a", {**FIGURES, "not_finite": 2})], None).status == "failed"
