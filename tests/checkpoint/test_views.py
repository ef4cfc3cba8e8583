"""Views: rows, columns and shapes of stored tensors, and of block formats bit by bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from edgewright.checkpoint.encoded import EncodedTensor
from edgewright.checkpoint.gguf_blocks import BLOCK_FORMATS, BlockTensor
from edgewright.checkpoint.tensor import MappedTensor
from edgewright.checkpoint.views import Columns, EveryNth, Flattened, Reshaped, RowsView, reshaped
from edgewright.errors import TensorMismatchError
from edgewright.formats import IntFormat, LinearInput, ScaledFormat


def stored(values: np.ndarray, dtype: str = "float32") -> MappedTensor:
    return MappedTensor("t", values.shape, dtype, np.frombuffer(values.tobytes(), np.uint8))


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def check(view: object, wanted: np.ndarray) -> None:
    """The whole, every cut in two, and empty ranges."""
    assert view.shape == wanted.shape  # type: ignore[attr-defined]
    n = wanted.shape[0]
    for cut in range(n + 1):
        parts = [view.rows(0, cut), view.rows(cut, n)]  # type: ignore[attr-defined]
        np.testing.assert_array_equal(np.concatenate(parts), wanted)
        assert view.rows(cut, cut).shape == (0, *wanted.shape[1:])  # type: ignore[attr-defined]
        assert view.raw(cut, cut).shape[0] == 0  # type: ignore[attr-defined]


def test_rows_of_several_tensors_in_any_order() -> None:
    a, b = numbers(7, 3), numbers(5, 3)
    view = RowsView("v", [(stored(a), (2, 4)), (stored(b), (0, 5)), (stored(a), (0, 1)), (stored(a), (6, 7))])
    check(view, np.concatenate([a[2:4], b, a[:1], a[6:]]))
    assert view.nbytes == 9 * 3 * 4
    np.testing.assert_array_equal(view.raw(1, 4).reshape(-1).view(np.float32).reshape(3, 3), view.rows(1, 4))


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q8_0", "Q4_K"])
def test_rows_of_block_formats_keep_their_codes(dtype: str) -> None:
    fmt = BLOCK_FORMATS[dtype]
    row = 256 // fmt.block_size * fmt.block_bytes
    data = np.random.default_rng(4).integers(0, 120, 6 * row, dtype=np.uint8)
    tensor = BlockTensor("t", (6, 256), dtype, data)
    view = RowsView("v", [(tensor, (4, 6)), (tensor, (1, 2))])
    order = [4, 5, 1]
    whole = tensor.parts(0, 6)
    found = view.parts(0, 3)
    np.testing.assert_array_equal(found.codes, whole.codes[order])
    np.testing.assert_array_equal(found.scales, whole.scales[order])
    assert (found.offsets is None) == (whole.offsets is None)
    np.testing.assert_array_equal(view.raw(0, 3), tensor.raw(0, 6)[order])
    assert view.format is tensor.format


def test_columns_of_one_matrix_and_of_a_stack() -> None:
    one, many = numbers(5, 8), numbers(3, 5, 8)
    check(Columns(stored(one)), one.T)
    check(Columns(stored(one), slice(1, None, 2)), one[:, 1::2].T)
    check(Columns(stored(many)), many.transpose(0, 2, 1).reshape(24, 5))
    check(Columns(stored(many), slice(0, None, 2)), many[:, :, 0::2].transpose(0, 2, 1).reshape(12, 5))
    check(Flattened(stored(one), slice(1, None, 2)), one[:, 1::2].reshape(-1))


def test_a_matrix_is_decoded_once_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    source = stored(numbers(3, 4, 6))
    rows = MappedTensor.rows

    def counted(self: MappedTensor, start: int, stop: int) -> np.ndarray:
        reads.append((start, stop))
        return rows(self, start, stop)

    monkeypatch.setattr(MappedTensor, "rows", counted)
    view = Columns(source)
    for start in range(0, 18, 2):
        view.rows(start, start + 2)
    assert reads == [(0, 1), (1, 2), (2, 3)]
    assert view._kept is None


def test_other_shapes() -> None:
    values = numbers(4, 3, 2)
    for shape in ((12, 2), (24,), (2, 6, 2), (8, 3)):
        mapped = reshaped(stored(values), shape)
        assert isinstance(mapped, MappedTensor)
        check(mapped, values.reshape(shape))
        check(Reshaped(stored(values), shape), values.reshape(shape))
    with pytest.raises(TensorMismatchError, match=r"t has the shape \[4, 3, 2\], which can't be \[5, 5\]"):
        reshaped(stored(values), (5, 5))


def test_dtypes_stay_what_they_were() -> None:
    half = numbers(3, 4).astype(ml_dtypes.bfloat16)
    view = Columns(stored(half, "bfloat16"))
    assert (view.dtype, view.nbytes) == ("bfloat16", 24)
    np.testing.assert_array_equal(view.raw(0, 4).reshape(-1).view(ml_dtypes.bfloat16).reshape(4, 3), half.T)
    assert Columns(stored(np.arange(6, dtype=np.int64).reshape(2, 3), "int64")).dtype == "int64"


def test_every_nth_row_of_plain_numbers_and_of_codes() -> None:
    values = numbers(11, 40)
    for first in range(3):
        check(EveryNth("v", stored(values), first, 3), values[first::3])
    fmt = IntFormat(4, 32, True)
    parts = fmt.encode(values, {})
    tensor = EncodedTensor("t", (11, 40), fmt, lambda a, b: {k: v[a:b] for k, v in parts.items()}, nbytes=1)
    for first in range(2):
        view = EveryNth("v", tensor, first, 2)
        assert view.encoding == fmt
        check(view, tensor.read()[first::2])
        for kind, part in view.encoded(1, 4).items():
            np.testing.assert_array_equal(part, parts[kind][first::2][1:4])
        assert len(view.encoded(0, 0)["codes"]) == 0


def test_every_nth_row_of_shared_scales_is_decoded() -> None:
    values, fmt = numbers(9, 5), ScaledFormat("e4m3", "block")
    parts = fmt.encode(values, {})
    tensor = EncodedTensor("t", (9, 5), fmt, lambda a, b: {**parts, "codes": parts["codes"][a:b]}, nbytes=1)
    view = EveryNth("v", tensor, 1, 2)
    assert view.encoding is None
    assert view.decoded == fmt
    check(view, tensor.read()[1::2])


def test_matrices_for_inputs_in_different_orders_are_put_in_place_to_be_joined() -> None:
    fmt, rng = IntFormat(8, 32, False), np.random.default_rng(5)
    wanted, pieces = [], []
    for seed in range(3):
        order = rng.permutation(40) if seed else None
        parts = fmt.encode(numbers(6, 40 + seed)[:, :40], {})
        given = None if order is None else LinearInput(permutation=order)
        tensor = EncodedTensor(
            "t", (6, 40), fmt, lambda a, b, p=parts: {k: v[a:b] for k, v in p.items()}, nbytes=1, linear_input=given
        )
        whole = tensor.read()
        if order is not None:
            whole[:, order] = tensor.read()
        wanted.append(whole[1:])
        pieces.append((tensor, (1, 6)))
    view = RowsView("v", pieces)
    assert view.encoding is view.input is None
    assert view.decoded == fmt
    check(view, np.concatenate(wanted))
