"""Figures and thresholds against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from edgewright.formats import FloatFormat, Format, IntFormat
from edgewright.quant.apply import Applied
from edgewright.verify.metrics import Distance, compare, distance, pool
from edgewright.verify.scenarios import scenarios
from edgewright.verify.thresholds import ENGINE, GOLDEN, QUALITY, Threshold, coarser, coarsest, rounds_inputs


def f32(values: object) -> np.ndarray:
    return np.asarray(values, dtype=np.float32)


def test_figures_by_hand() -> None:
    """Two tokens: the reference has odds 3:1 and 1:1, the candidate 1:1 and 4:1."""
    reference = f32([[math.log(3), 0.0], [0.0, 0.0]])
    candidate = f32([[0.0, 0.0], [math.log(4), 0.0]])
    d = distance(candidate, reference)
    first = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    second = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    assert d.positions == 2
    assert d.kl == pytest.approx((first + second) / 2, rel=1e-6)
    assert d.kl_error == pytest.approx(abs(first - second) / 2, rel=1e-6)
    assert d.max_error == pytest.approx(math.log(4) / math.log(3), rel=1e-6)
    assert d.top1 == 1.0  # ties go to the lowest id on both sides


def test_cosine_and_agreement_by_hand() -> None:
    reference = f32([[3.0, 4.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    candidate = f32([[3.0, 4.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    d = distance(candidate, reference)
    assert d.cosine == pytest.approx(1 / math.sqrt(5), rel=1e-6)  # the smallest, of the last row
    assert d.top1 == pytest.approx(2 / 3)
    assert d.max_error == pytest.approx(2.0 / 4.0)


def test_equal_logits() -> None:
    logits = np.random.default_rng(0).standard_normal((37, 11)).astype(np.float32)
    d = distance(logits, logits)
    assert (d.max_error, d.kl, d.kl_error, d.top1) == (0.0, 0.0, 0.0, 1.0)
    assert d.cosine == pytest.approx(1.0)
    # A constant on top of all logits changes the error and not the distribution.
    shifted = distance(logits + 3, logits)
    assert abs(shifted.kl) < 1e-9
    assert shifted.max_error > 0.5


def test_kl_is_of_the_reference_against_the_candidate_and_survives_large_logits() -> None:
    reference, candidate = f32([[1000.0, 0.0]]), f32([[0.0, 1000.0]])
    assert distance(candidate, reference).kl == pytest.approx(1000.0)
    reference, candidate = f32([[0.0, 0.0]]), f32([[50.0, 0.0]])
    assert distance(candidate, reference).kl == pytest.approx(25 - math.log(2), rel=1e-4)
    assert distance(reference, candidate).kl == pytest.approx(math.log(2), rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_infinitely_far(bad: float) -> None:
    reference = np.random.default_rng(1).standard_normal((40, 7)).astype(np.float32)
    candidate = reference.copy()
    candidate[33, 2] = bad
    d = distance(candidate, reference)
    assert d == Distance(40, math.inf, 0.0, math.inf, math.inf, 0.0)
    assert d.to_json()["kl"] is None
    for threshold in (*ENGINE.values(), *QUALITY.values()):
        assert any("KL inf" in fault for fault in threshold.faults(d))


def test_pooling_is_comparing_all_rows() -> None:
    rng = np.random.default_rng(2)
    reference = rng.standard_normal((50, 9)).astype(np.float32)
    candidate = (reference + rng.standard_normal((50, 9)) * 0.1).astype(np.float32)
    parts = [compare(candidate[a:b], reference[a:b]) for a, b in ((0, 3), (3, 40), (40, 50))]
    assert pool(parts).summary() == distance(candidate, reference)


def test_one_row_has_no_standard_error() -> None:
    d = distance(f32([[1.0, 2.0]]), f32([[1.0, 2.5]]))
    assert d.kl_error == math.inf
    assert d.to_json()["kl_error"] is None
    # Its uncertainty is no excuse: without one, the KL itself counts.
    assert Threshold(kl=1e-9).faults(d)


def test_thresholds() -> None:
    threshold = Threshold(kl=0.01, max_error=0.1, cosine=0.9)
    good = Distance(10, 0.1, 0.9, 0.01, 0.0, 0.5)
    assert threshold.faults(good) == []
    for change, word in (
        ({"max_error": 0.1001}, "max error"),
        ({"cosine": 0.8999}, "cosine"),
        ({"kl": 0.0101}, "KL"),
        ({"kl": 0.03, "kl_error": 0.009}, "KL"),
        ({"max_error": math.nan}, "max error"),
        ({"cosine": math.nan}, "cosine"),
        ({"kl": math.nan}, "KL"),
    ):
        (fault,) = threshold.faults(Distance(**{**vars(good), **change}))
        assert word in fault
    assert threshold.faults(Distance(**{**vars(good), "kl": 0.03, "kl_error": 0.011})) == []
    assert Threshold(kl=0.01).faults(Distance(10, 99.0, -1.0, 0.0, 0.0, 0.0)) == []


def test_the_coarsest_format_decides() -> None:
    def applied(*formats: Format, kind: str = "body") -> list[Applied]:
        return [Applied("m", kind, fmt, False, "float32") for fmt in formats]

    half, full = FloatFormat("float16"), FloatFormat("float32")
    int8, int4 = IntFormat(8, 32, False), IntFormat(4, 128, True)
    assert coarsest([]) == "float32"
    assert coarsest([full, half]) == "float16"
    assert coarsest([int8, half, full]) == "int8"
    assert coarsest([full, int8, int4, int8]) == "int4"
    assert coarser(["int8", "float16"]) == "int8"
    assert QUALITY.keys() == GOLDEN.keys() == {"float32", "float16", "int8", "fp8", "int4"}
    # An engine that rounds its inputs somewhere may be further off; a look-up rounds none.
    assert ENGINE.keys() == {False, True}
    exact = IntFormat(4, 32, False, int8_activations=False)
    assert not rounds_inputs(applied(full, half, exact))
    assert not rounds_inputs(applied(int8, kind="embedding") + applied(exact))
    assert rounds_inputs(applied(exact, int8))


@pytest.mark.parametrize("cut_back", [True, False])
@pytest.mark.parametrize("context", [1, 2, 7, 17, 40, 256, 300, 4096])
def test_scenarios_fit_any_context_and_know_their_rows(context: int, cut_back: bool) -> None:
    class Counting:
        """A session that returns one row a token: the token itself."""

        def __init__(self, batch: int) -> None:
            self.held: list[list[int]] = [[] for _ in range(batch)]

        def append_rows(self, rows: Sequence[np.ndarray], logits: str = "last") -> list[np.ndarray]:
            results = []
            for held, ids in zip(self.held, rows, strict=True):
                assert len(ids)
                held += [int(i) for i in ids]
                assert len(held) <= context
                results.append(np.asarray({"all": ids, "last": ids[-1:], "none": ids[:0]}[logits])[:, None])
            return results

        def append(self, ids: np.ndarray, logits: str = "last") -> np.ndarray:
            if ids.ndim == 1:
                return self.append_rows([ids], logits)[0]
            return np.stack(self.append_rows(list(ids), logits))

        def truncate(self, length: int) -> None:
            for held in self.held:
                del held[length:]

    tokens = np.random.default_rng(3).integers(0, 1000, 320)
    names = []
    for script in scenarios(tokens, context, max_batch=4, cut_back=cut_back):
        session = Counting(len(script.sequences))
        rows = script.run(session)  # type: ignore[arg-type]
        assert session.held == [row.tolist() for row in script.sequences]
        assert rows[:, 0].tolist() == [int(i) for row in script.sequences for i in row[script.first :]]
        assert len(script.positions) == len(rows)
        assert cut_back or all(step.length is None for step in script.steps)
        names.append(script.name)
    assert names[:2] == ["prefill", "chunked prefill"]
    if context > 256:
        assert names == ["prefill", "chunked prefill", "decode", "two turns", "batch"]
        longest = max(len(row) for s in scenarios(tokens, context) for row in s.sequences)
        assert longest > 256  # past the first growth of the cache
        (batch,) = [s for s in scenarios(tokens, context, max_batch=4) if s.name == "batch"]
        assert len({len(row) for row in batch.sequences}) == len(batch.sequences)  # of different lengths
