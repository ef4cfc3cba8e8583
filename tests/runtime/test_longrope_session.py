"""Sessions whose rope frequencies depend on the total length: crossing, cutting back, interruptions, batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import MakeEngine, changed, golden, relative_error
from edgewright.checkpoint import Checkpoint
from edgewright.models import config_of
from edgewright.runtime.session import Session

TOLERANCE = 2e-5
#: The golden's original context.
SWITCH = 24


@pytest.fixture(params=["onnxruntime", "portable"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def reference(engine: Any, ids: np.ndarray) -> np.ndarray:
    """All logits of a text that is fed at once."""
    result: np.ndarray = Session(engine).append(ids, logits="all")
    return result


def same(got: np.ndarray, wanted: np.ndarray) -> bool:
    return relative_error(got, wanted) < TOLERANCE


def test_crossing_feeds_again(shared_engine: MakeEngine, dialect: str) -> None:
    engine, ids = shared_engine("phi3_longrope", dialect), golden("phi3_longrope").ids
    assert engine.contract.rope_switch == SWITCH
    session = Session(engine)
    for n in range(1, 40):
        assert same(session.append(ids[n - 1 : n]), reference(engine, ids[:n])[-1:]), n
    session.truncate(10)
    assert same(session.append(ids[10:20], "all"), reference(engine, ids[:20])[10:])
    assert same(session.append(ids[20:50], "all"), reference(engine, ids[:50])[20:])
    copy = session.copy()
    copy.truncate(5)
    assert same(copy.append(ids[5:6]), reference(engine, ids[:6])[-1:])
    assert same(session.append(ids[50:51]), reference(engine, ids[:51])[-1:])


@pytest.mark.parametrize("lengths", [(5, 9), (3, 3), (30, 9), (20, 22), (23, 24)])
def test_every_row_of_a_batch_has_its_own_length(
    lengths: tuple[int, int], shared_engine: MakeEngine, dialect: str
) -> None:
    engine, ids = shared_engine("phi3_longrope", dialect), golden("phi3_longrope").ids
    texts = [ids, ids[::-1].copy()]
    session = Session(engine, batch=2)
    held = list(lengths)
    session.append_rows([text[:n] for text, n in zip(texts, held, strict=True)])
    for step in range(4):
        for logits in ("last", "all") if step % 2 else ("all", "last"):
            got = session.append([[int(t[n])] for t, n in zip(texts, held, strict=True)], logits=logits)  # type: ignore[arg-type]
            held = [n + 1 for n in held]
            for row, (text, n) in enumerate(zip(texts, held, strict=True)):
                assert same(got[row], reference(engine, text[:n])[-1:]), (row, n)
    rows = session.append_rows([text[n : n + 3] for text, n in zip(texts, held, strict=True)], "all")
    for row, text, n in zip(rows, texts, held, strict=True):
        assert same(row, reference(engine, text[: n + 3])[n:])


def test_what_is_saved_after_cutting_back_is_a_short_text(shared_engine: MakeEngine) -> None:
    engine, ids = shared_engine("phi3_longrope"), golden("phi3_longrope").ids
    session = Session(engine)
    session.append(ids[:40], "none")
    session.truncate(12)
    other = Session(engine)
    other.restore([array.copy() for array in session.cache()], ids[:12])
    wanted = reference(engine, ids[:15])[12:]
    assert same(other.append(ids[12:15], "all"), wanted)
    assert same(session.append(ids[12:15], "all"), wanted)


def test_an_interruption_leaves_a_sound_session(shared_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever chunk is interrupted, the session is right for the tokens it says it holds."""
    engine, ids = shared_engine("phi3_longrope"), golden("phi3_longrope").ids
    monkeypatch.setattr("edgewright.runtime.session.PREFILL_CHUNK", 8)
    run = type(engine)._run
    for after in range(1, 7):
        session = Session(engine)
        session.append(ids[:20], "none")
        calls = 0

        def interrupted(self: Any, binding: Any, limit: int = after) -> None:
            nonlocal calls
            calls += 1
            if calls == limit:
                raise KeyboardInterrupt
            run(self, binding)

        with monkeypatch.context() as patch:
            patch.setattr(type(engine), "_run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.append(ids[20:44], "none")
        n = session.length
        assert same(session.append(ids[n : n + 1]), reference(engine, ids[: n + 1])[-1:]), (after, n)
        assert same(session.append(ids[n + 1 : 50], "all"), reference(engine, ids[:50])[n + 1 :]), (after, n)


def with_longrope(checkpoint: Checkpoint) -> Checkpoint:
    """Give a hybrid a rope of two sets of frequencies."""
    parameters = dict(checkpoint.config["rope_parameters"])
    _, config = config_of(checkpoint.config)
    half = config.rotary_dim // 2
    scaling = {
        "rope_type": "longrope",
        "short_factor": [1.0] * half,
        "long_factor": [3.0] * half,
        "original_max_position_embeddings": SWITCH,
    }
    return changed(checkpoint, rope_parameters=parameters | scaling)


@pytest.mark.parametrize("case", ["qwen3_5_text", "falcon_h1"])
def test_states_are_made_again_as_well(case: str, make_engine: MakeEngine) -> None:
    reference_ = golden(case)
    engine = make_engine(with_longrope(reference_.checkpoint))
    ids = reference_.ids
    session = Session(engine)
    session.append(ids[:20], "none")
    assert same(session.append(ids[20:40], "all"), reference(engine, ids[:40])[20:])
    session.rewind(20)  # what was remembered before the crossing has other frequencies
    n = session.length
    assert same(session.append(ids[n:30], "all"), reference(engine, ids[:30])[n:])
