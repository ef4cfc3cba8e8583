"""Segments: every node once and in order, and run one after the other they are the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgewright.quantizer.segments import cut
from edgewright.quantizer.stream import FloatModel, Spool, run_all
from quantizer_cases import checkpoint_of, samples_of, stage_of

FAMILIES = ["llama", "gemma4_text", "qwen3_next", "gpt2", "cohere", "mamba2", "deepseek_v3"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_is_in_one_segment_and_reads_what_came_before(family: str) -> None:
    stage = stage_of(family)
    segments = cut(stage)
    nodes = [id(node) for segment in segments for node in segment.nodes]
    assert len(nodes) == len(set(nodes)) == len(list(stage.graph))
    given: set[str] = set()
    for segment in segments:
        assert set(segment.fed) <= given
        given |= set(segment.gives)
    titles = [segment.title for segment in segments]
    assert titles == ["embedding", *(f"layer {i}" for i in range(len(titles) - 2)), "head"]


@pytest.mark.parametrize("family", FAMILIES)
def test_segments_in_turn_give_the_logits_of_the_whole(family: str, tmp_path: Path) -> None:
    checkpoint, stage = checkpoint_of(family), stage_of(family)
    segments = cut(stage)
    model = FloatModel(stage, tmp_path / "model", None, 1)
    rows = samples_of(checkpoint, 3).rows
    spool = Spool(tmp_path / "spool")
    for segment in segments:
        for sample, values in run_all(model, segment, spool, rows, segment.gives):
            for name in segment.gives:
                spool.write(name, sample, values[name])
    session = model.whole()
    for sample, ids in enumerate(rows):
        whole = model.logits(session, ids, np.arange(len(ids)))
        got = spool.read(segments[-1].gives[-1], sample).reshape(whole.shape)
        np.testing.assert_allclose(got, whole, atol=2e-5 * max(1.0, np.abs(whole).max()))


def test_a_spool_gives_back_what_it_was_given(tmp_path: Path) -> None:
    rng, spool = np.random.default_rng(0), Spool(tmp_path)
    kept = {}
    for sample in range(5):
        for name in ("a/b", "c"):
            kept[name, sample] = rng.standard_normal((1, 3 + sample, 4)).astype(np.float32)
            spool.write(name, sample, kept[name, sample])
    kept["a/b", 2] = -kept["a/b", 2]
    spool.write("a/b", 2, kept["a/b", 2])
    again = Spool(tmp_path)
    again.restore(spool.state())
    for (name, sample), values in kept.items():
        np.testing.assert_array_equal(again.read(name, sample), values)
    again.drop(["c"])
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(OSError, match="No such file"):
        Spool(tmp_path).restore(spool.state())
