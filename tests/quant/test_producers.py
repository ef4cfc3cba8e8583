"""What another tool quantized is taken over as it is, unless it holds codes or scales that stand for no number."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import ArrayTensor
from edgewright.checkpoint.encoded import EncodedTensor
from edgewright.errors import CheckpointError
from edgewright.formats import BlockFormat, IntFormat, MxFormat, Nvfp4Format, Parts, ScaledFormat
from edgewright.graph.weights import StoredWeight
from edgewright.quant.producers import EncodedProducer

ROWS, WIDTH = 5, 72
BLOCK = ScaledFormat("e4m3", "channel")


def parts_of(fmt: BlockFormat, seed: int) -> Parts:
    values = np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(np.float32)
    shared = fmt.survey(float(np.abs(values).max()))
    return {**shared, **fmt.encode(values, shared)}


def taken_over(fmt: BlockFormat, parts: Parts) -> dict[str, np.ndarray]:
    def rows(start: int, stop: int) -> Parts:
        return {kind: part if kind in fmt.shared else part[start:stop] for kind, part in parts.items()}

    tensor = EncodedTensor("w.weight", (ROWS, WIDTH), fmt, rows, nbytes=1)
    weight = StoredWeight(ArrayTensor("w.weight", np.zeros((ROWS, WIDTH), np.float32)), "w.weight")
    producer = EncodedProducer(tensor, weight, fmt, "w")  # type: ignore[arg-type]
    (chunk,) = [make() for make in producer.chunks()]
    return {spec.name.rpartition(".")[2]: array for spec, array in zip(producer.specs, chunk, strict=True)}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "fmt",
    [BLOCK, ScaledFormat("int8", "channel"), Nvfp4Format(), MxFormat("e4m3"), MxFormat("e2m1"), IntFormat(4, 32, True)],
)
def test_every_byte_is_kept(fmt: BlockFormat, seed: int) -> None:
    parts = parts_of(fmt, seed)
    got = taken_over(fmt, parts)
    assert {kind: array.tobytes() for kind, array in got.items()} == {k: v.tobytes() for k, v in parts.items()}


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize(
    ("fmt", "kind"),
    [(BLOCK, "codes"), (MxFormat("e4m3"), "codes"), (Nvfp4Format(), "scales"), (MxFormat("e2m1"), "scales")],
)
def test_codes_that_stand_for_no_number_are_refused(fmt: BlockFormat, kind: str, code: int) -> None:
    if isinstance(fmt, MxFormat) and kind == "scales" and code == 0x7F:
        code = 0xFF  # 0x7F is a scale of 1 there
    parts = parts_of(fmt, 2)
    parts[kind] = parts[kind].copy()
    parts[kind].view(np.uint8)[3, 1] = code
    with pytest.raises(CheckpointError, match=rf"w\.weight holds {kind} that are not finite: repair the checkpoint"):
        taken_over(fmt, parts)


def test_a_shared_scale_that_is_no_number_is_refused() -> None:
    parts = parts_of(Nvfp4Format(), 3)
    with pytest.raises(CheckpointError, match="global_scale that are not finite"):
        taken_over(Nvfp4Format(), {**parts, "global_scale": np.array([np.inf], np.float32)})


@pytest.mark.parametrize("fmt", [IntFormat(8, 32, False), ScaledFormat("int8", "channel"), MxFormat("e2m1")])
def test_any_whole_number_is_a_code(fmt: BlockFormat) -> None:
    parts = parts_of(fmt, 4)
    codes = parts["codes"].copy()
    codes.view(np.uint8)[:] = 0x7F
    assert (taken_over(fmt, {**parts, "codes": codes})["codes"].view(np.uint8) == 0x7F).all()
