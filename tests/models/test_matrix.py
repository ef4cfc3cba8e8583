"""The matrix, row by row: every cell right, or refused by the sentence that docs/supported.md shows."""

from __future__ import annotations

import cells
import matrix_page
import pytest

from edgewright.errors import GenerationError, TruncationError

PAGE = matrix_page.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", cells.names())
def test_every_cell_is_right_or_refused_as_documented(name: str) -> None:
    found = cells.cells_of(name)
    assert tuple(found) == cells.COLUMNS
    wrong = {column: cell for column, cell in found.items() if not cell.right and not cell.refused}
    assert not wrong
    shown = matrix_page.read(PAGE)[name]
    assert {column: cell.refused for column, cell in found.items()} == {c: cell.refused for c, cell in shown.items()}


@pytest.mark.parametrize("name", cells.names())
def test_the_portable_dialect_is_right_as_well(name: str) -> None:
    found = cells.float_cells(cells.read_row(name), "portable")
    assert all(cell.right or cell.refused for cell in found.values()), found


def test_a_wrong_cell_is_told_from_a_right_one() -> None:
    assert cells.Cell(1e-5).right
    assert not cells.Cell(2e-4).right
    assert not cells.Cell(float("nan")).right
    refused = cells.Cell(refused=str(TruncationError("no")))
    assert refused.refused
    assert not refused.right


def test_an_engine_that_fails_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise GenerationError("The engine failed.")

    monkeypatch.setattr("edgewright.runtime.engines.onnxruntime.OnnxRuntimeEngine._run", fail)
    with pytest.raises(GenerationError, match="The engine failed"):
        cells.cells_of("llama")
