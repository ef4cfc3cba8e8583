"""Sampling: distributions against transformers' processors, penalties by hand, draws against probabilities."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.errors import GenerationError
from edgewright.runtime.sampling import Sampler, SamplingParams

GOLDEN = json.loads((Path(__file__).parent / "data" / "sampling.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: json.dumps(case["params"]))
def test_distribution_equals_transformers(case: dict[str, Any]) -> None:
    sampler = Sampler(SamplingParams(**case["params"]), case["ids"])
    ids, probabilities = sampler.distribution(np.array(case["logits"], dtype=np.float32))
    got = dict(zip(ids.tolist(), probabilities.tolist(), strict=True))
    want = dict(case["kept"])
    assert sorted(got) == sorted(want)
    np.testing.assert_allclose([got[token] for token in want], list(want.values()), rtol=2e-5, atol=1e-9)


def test_greedy_is_argmax_and_reads_the_callers_array_only() -> None:
    logits = np.array([0.5, 3.25, -1.0, 3.25], dtype=np.float32)
    logits.setflags(write=False)
    assert Sampler(SamplingParams())(logits) == 1  # the lowest id of two equal logits


def test_greedy_with_repetition_penalty_over_prompt_and_generated() -> None:
    logits = np.array([4.0, 3.9, 3.0, -1.0], dtype=np.float32)
    sampler = Sampler(SamplingParams(repetition_penalty=2.0), [0, 99])
    # 0 is in the prompt: 4 / 2 = 2; then 1 was generated: 1.95, and 2 leads; then 2: 1.5, and 0 leads again
    assert [sampler(logits) for _ in range(4)] == [1, 2, 0, 0]


def test_repetition_penalty_multiplies_negative_logits() -> None:
    logits = np.array([-1.0, -1.5, -9.0], dtype=np.float32)
    assert Sampler(SamplingParams(repetition_penalty=1.6), [0])(logits) == 1
    assert logits.tolist() == [-1.0, -1.5, -9.0]


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    logits = np.array([2.0, 1.0, 0.0], dtype=np.float32)
    frequency = Sampler(SamplingParams(frequency_penalty=0.6), [0, 0, 0])
    assert [frequency(logits) for _ in range(4)] == [0, 0, 1, 0]  # 2, 1.4, (0.8 < 1), (0.8 > 0.4)
    presence = Sampler(SamplingParams(presence_penalty=1.5), [0])
    assert [presence(logits) for _ in range(3)] == [0, 1, 0]  # 2, (0.5 < 1), (0.5 > -0.5), once only


def test_order_is_repetition_then_frequency_and_presence() -> None:
    params = SamplingParams(
        temperature=1.0, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, seed=0
    )
    sampler = Sampler(params)
    first = np.array([9.0, -90.0, -90.0], dtype=np.float32)
    assert [sampler(first), sampler(first)] == [0, 0]
    ids, probabilities = sampler.distribution(np.array([3.0, 1.0, 0.2], dtype=np.float32))
    expected = np.exp(np.array([3.0 / 2 - 0.5 - 2 * 0.25, 1.0, 0.2]))
    np.testing.assert_allclose(probabilities, expected / expected.sum(), rtol=1e-6)
    assert ids.tolist() == [0, 1, 2]


def test_ties() -> None:
    logits = np.array([1.0, 2.0, 1.0, 1.0, 0.0], dtype=np.float32)
    ids, _ = Sampler(SamplingParams(temperature=1.0, top_k=2)).distribution(logits)
    assert ids.tolist() == [0, 1, 2, 3]  # all that equal the second largest
    ids, _ = Sampler(SamplingParams(temperature=1.0, top_p=0.7)).distribution(logits)
    assert ids.tolist() == [1, 0, 2]  # 0.447 + 0.164 < 0.7, so one more; equal ones in the order of ids


@pytest.mark.parametrize("top_p", [1e-9, 0.05, 0.5, 0.9, 0.999, 0.9999999])
@pytest.mark.parametrize("spread", [0.0, 0.02, 1.0, 6.0])
def test_partial_sort_of_top_p_equals_a_full_sort(top_p: float, spread: float) -> None:
    logits = np.random.default_rng(5).normal(0, spread, 30_011).astype(np.float32)
    ids, probabilities = Sampler(SamplingParams(temperature=1.0, top_p=top_p)).distribution(logits)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    order = np.argsort(-logits, kind="stable")
    before = np.concatenate([[0.0], weights[order].cumsum()]) / weights.sum()
    assert ids.tolist() == order[: len(ids)].tolist()
    assert before[len(ids) - 1] < top_p + 1e-7  # the cut itself may round either way
    assert before[len(ids)] >= top_p - 1e-7
    assert math.isclose(probabilities.sum(), 1.0, rel_tol=1e-12)


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("filters", [{}, {"top_k": 6}, {"top_p": 0.9}, {"min_p": 0.05, "top_p": 0.97}])
def test_frequencies_match_probabilities(filters: dict[str, Any], seed: int) -> None:
    logits = np.random.default_rng(8).normal(0, 1.2, 13).astype(np.float32)
    sampler = Sampler(SamplingParams(temperature=1.1, seed=seed, **filters))
    ids, probabilities = sampler.distribution(logits)
    draws = 1_500
    counts = np.bincount([sampler(logits) for _ in range(draws)], minlength=logits.size)
    assert counts.sum() == counts[ids].sum()  # nothing outside of the filters
    expected = probabilities * draws
    chi_square = float(((counts[ids] - expected) ** 2 / expected).sum())
    freedom = len(ids) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # four standard deviations; the seeds are fixed


def test_seeds_reproduce() -> None:
    logits = np.random.default_rng(1).normal(0, 1, 300).astype(np.float32)

    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        return [sampler(logits) for _ in range(50)]

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)
    assert tokens(None) != tokens(None)
    assert tokens(2**64 - 1) == tokens(2**64 - 1)


def test_one_draw_is_pcg64() -> None:
    """The rule that makes seeds portable: one uniform number per token, inverted over the ids in order."""
    probabilities = np.array([0.1, 0.2, 0.3, 0.4])
    sampler = Sampler(SamplingParams(temperature=1.0, seed=42))
    uniform = np.random.Generator(np.random.PCG64(42)).random(40)
    got = [sampler(np.log(probabilities).astype(np.float32)) for _ in range(40)]
    assert got == np.searchsorted(probabilities.cumsum(), uniform, side="right").tolist()


def test_tiny_temperature_is_greedy_without_overflow() -> None:
    logits = np.array([-3e38, 3e38, 2.9e38], dtype=np.float32)
    assert Sampler(SamplingParams(temperature=1e-300, seed=0))(logits) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_non_finite_logits_are_named(bad: float, temperature: float) -> None:
    logits = np.zeros(5, dtype=np.float32)
    logits[3] = bad
    with pytest.raises(GenerationError, match=f"token 3 is {bad}"):
        Sampler(SamplingParams(temperature=temperature))(logits)


@pytest.mark.parametrize(
    "logits", [np.zeros((2, 3), np.float32), np.zeros(0, np.float32), np.zeros(3, np.int64), [1.0]]
)
def test_logits_of_another_form_are_refused(logits: Any) -> None:
    with pytest.raises(GenerationError, match="float vector"):
        Sampler(SamplingParams())(logits)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", True),
        ("temperature", "1"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", False),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.0),
    ],
)
def test_values_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(GenerationError, match=f"^{name} is .*give "):
        SamplingParams(**{name: value})


def test_numpy_scalars_are_numbers() -> None:
    SamplingParams(temperature=np.float32(0.5), top_k=np.int64(4))  # type: ignore[arg-type]


def test_negative_prompt_id_is_refused() -> None:
    with pytest.raises(GenerationError, match="-3 is negative"):
        Sampler(SamplingParams(), [1, -3])
