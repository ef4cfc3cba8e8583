from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from edgewright import LLM
from edgewright.bench import Figure, Plan, measure, measure_bundle
from edgewright.bench.memory import AnonymousPeak, forget_peak, status_bytes
from edgewright.build.pipeline import deploy
from edgewright.errors import UsageError

LLAMA = Path(__file__).parent.parent / "goldens" / "text" / "llama"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deploy(LLAMA, tmp_path_factory.mktemp("bench") / "bundle", recipe="float32", verify=False).path


class Session:
    """Counts what it is fed, and makes the clock go by a second a token."""

    vocabulary = None

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.fed: list[list[int]] = []

    def append(self, ids: list[int], logits: str = "last") -> np.ndarray:
        self.fed.append(list(ids))
        self.clock.now += len(ids)
        return np.eye(1, 5, len(self.fed) % 5, dtype=np.float32)


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Model:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.sessions: list[Session] = []

    def session(self) -> Session:
        self.sessions.append(Session(self.clock))
        return self.sessions[-1]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    return Model(clock)


def test_prefill_is_timed_from_an_empty_session_in_one_piece(model: Model) -> None:
    assert measure.prefill_s(model, [3, 1, 4]) == 3.0  # type: ignore[arg-type]
    assert model.sessions[0].fed == [[3, 1, 4]]


def test_decode_times_each_token_and_not_the_prefill(model: Model) -> None:
    assert measure.decode_s(model, [0] * 10, 4) == [1.0] * 4  # type: ignore[arg-type]
    # Each fed token is the likeliest of the logits before.
    assert model.sessions[0].fed == [[0] * 10, [1], [2], [3], [4]]


def test_figures() -> None:
    figure = Figure.of([3.0, 100.0, 1.0, 2.0])
    assert (figure.median, figure.low, figure.high) == (2.5, 1.0, 100.0)
    assert str(figure) == "2.5 [1..100]"


def test_a_measurement_is_complete_and_consistent(bundle: Path) -> None:
    plan = Plan(prompt_tokens=50, decode_tokens=8, after=(9, 40), repeats=3, seed=7)
    result = measure_bundle(bundle, plan, threads=1)
    assert result.plan == plan
    files = [path for path in bundle.rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert result.bundle_bytes == sum(path.stat().st_size for path in files)
    speeds = [decode.tokens_per_s for decode in result.decode]
    for figure in (result.load_ms, result.prefill_tokens_per_s, result.ttft_ms, *speeds):
        assert 0 < figure.low <= figure.median <= figure.high
    assert [decode.after for decode in result.decode] == [9, 40]
    for decode in result.decode:
        assert 0 < decode.inter_token_p50_ms <= decode.inter_token_p95_ms
        # A token's time and the speed are two views of one thing.
        assert 0.2 < decode.inter_token_p50_ms / 1000 * decode.tokens_per_s.median < 2
    assert result.peak_rss_bytes is not None
    assert result.peak_anonymous_bytes is not None
    assert 0 < result.peak_anonymous_bytes < result.peak_rss_bytes
    data = json.loads(json.dumps(result.to_json()))
    assert data["plan"]["after"] == [9, 40]
    assert data["ttft_prompt_tokens"] == 32
    assert data["load_ms"]["median"] == result.load_ms.median


def test_ids_are_seeded_and_in_the_vocabulary(bundle: Path) -> None:
    llm = LLM.load(bundle)
    first, again, other = (measure._random_ids(llm, Plan(seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 1024
    assert 0 <= min(first) < max(first) < 97
    assert len(set(first)) > 80


@pytest.mark.parametrize(
    "plan",
    [Plan(257, 1, (1,)), Plan(1, 1, (256,)), Plan(1, 256, (1,))],
)
def test_a_plan_beyond_the_context(bundle: Path, plan: Plan) -> None:
    with pytest.raises(UsageError, match="needs 257 tokens of context and the bundle has 256"):
        measure_bundle(bundle, plan)


def test_the_anonymous_peak_is_seen() -> None:
    with AnonymousPeak(period_s=0.001) as peak:
        before = status_bytes("RssAnon")
        block = np.ones(64 << 20, dtype=np.uint8)
        held = int(block[::4096].sum())
        import time

        time.sleep(0.05)
        del block
    assert held == (64 << 20) // 4096
    assert before is not None
    assert peak.bytes is not None
    assert peak.bytes > before + (60 << 20)


def test_a_field_that_is_not_there() -> None:
    assert status_bytes("NoSuchField") is None


def test_a_peak_can_be_forgotten() -> None:
    """Several cases of one process: none is charged with what another needed before it."""
    needed = np.ones(40_000_000, np.uint8)
    with_it = status_bytes("VmHWM")
    del needed
    forget_peak()
    without = status_bytes("VmHWM")
    if with_it is None or without is None or not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system does not count or does not forget")
    assert without < with_it - 20_000_000
