"""What a plan says: shares over time, encodings and the way between them, what isn't known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgewright.bench.case.plan import plan_case
from edgewright.bench.case.spec import Case, DialogSpec, InputSpec, ModelSpec, SchedulerSpec, SimulatedModel
from edgewright.runtime.encoding import EmbeddingFile, Encoding
from edgewright.runtime.scheduling.timeline import Timeline

from .conftest import CONTEXT, HIDDEN

INPUT = Encoding("uint16", 0.00031563572701998055, -32937)
LUT = Encoding("uint8", 0.001585477963089943, -129)
MODEL = ModelSpec(name="m", simulated=SimulatedModel(prefill_ms=1, decode_ms=1))
LINES = ("0:0,1:5000", "4:0,0:5000,4:20000", "1:0,0:5000,1:20000")


def weighted(*lines: str, **fields: object) -> Case:
    dialogs = tuple(
        DialogSpec(
            name=f"D{i}",
            model="m",
            input=InputSpec(prompt_tokens=7),
            max_tokens=3,
            timeline=Timeline.parse(line),
        )
        for i, line in enumerate(lines)
    )
    return Case(name="c", models=(MODEL,), dialogs=dialogs, **fields)  # type: ignore[arg-type]


def test_the_requirements_timeline() -> None:
    plan = plan_case(weighted(*LINES))
    assert [(part.start_ms, part.end_ms) for part in plan.segments] == [(0, 5000), (5000, 20000), (20000, None)]
    shares = [[round(share, 3) for share in (part.shares or {}).values()] for part in plan.segments]
    assert shares == [[0, 0.8, 0.2], [1, 0, 0], [0.167, 0.667, 0.167]]
    assert (plan.share_of, plan.simulated) == ("quanta", True)
    assert [dialog.prompt_tokens for dialog in plan.dialogs] == [7, 7, 7]
    assert plan.to_json()["segments"][0]["weights"] == {"D0": 0.0, "D1": 4.0, "D2": 1.0}
    json.dumps(plan.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("discipline", "share_of", "bounds"),
    [("weighted", "quanta", [2, 5, 12]), ("fair-time", "time", [None] * 3), ("priority", None, [None] * 3)],
)
def test_bounds_and_shares_of_disciplines(discipline: str, share_of: str | None, bounds: list[int | None]) -> None:
    scheduler = SchedulerSpec(discipline=discipline)  # type: ignore[arg-type]
    plan = plan_case(weighted("4:0", "2:0", "1:0", scheduler=scheduler))
    assert [dialog.bound for dialog in plan.dialogs] == bounds
    assert plan.share_of == share_of
    assert (plan.segments[0].shares is None) == (share_of is None)


def fed(table: object, model_bundle: Path | None = None, path: Path = Path("in.bin")) -> Case:
    model = ModelSpec(name="m", bundle=model_bundle, table=table)  # type: ignore[arg-type]
    asked = InputSpec(embedding=EmbeddingFile(path, INPUT, stated=True))
    return Case(name="c", models=(model,), dialogs=(DialogSpec(name="D0", model="m", input=asked),))


def test_the_way_from_a_tables_codes_to_the_inputs() -> None:
    [dialog] = plan_case(fed(EmbeddingFile(Path("t"), LUT, stated=True))).dialogs
    assert dialog.encoding is not None
    assert (dialog.encoding.k, dialog.encoding.b) == (
        pytest.approx(5.02312579776363, rel=1e-14),
        pytest.approx(32289.016772088493, rel=1e-14),
    )
    said = dialog.encoding.to_json()
    assert said["input"]["range"] == pytest.approx([-10.3960939408571, 10.289093429397326], rel=1e-14)
    assert said["table"]["range"] == pytest.approx([-0.204526657, 0.199770223], rel=1e-7)
    [same] = plan_case(fed(EmbeddingFile(Path("t"), INPUT, stated=True))).dialogs
    assert same.encoding is not None
    assert (same.encoding.k, same.encoding.b) == (1, 0)


def test_what_needs_no_way() -> None:
    for table in ("bundle", "none"):
        plan = plan_case(fed(table))
        assert plan.dialogs[0].encoding is not None
        assert plan.dialogs[0].encoding.to_json()["requantize"] is None
        assert any("ends with its first token" in note for note in plan.notes) == (table == "none")
    floats = plan_case(
        Case(
            name="c",
            models=(ModelSpec(name="m", table=EmbeddingFile(Path("t"))),),
            dialogs=(DialogSpec(name="D0", model="m", input=InputSpec(embedding=EmbeddingFile(Path("e")))),),
        )
    )
    assert floats.dialogs[0].to_json()["encoding"]["input"] == {
        "dtype": "float32",
        "scale": 1.0,
        "offset": 0,
        "range": None,
    }


def test_a_pause_for_good_is_noted() -> None:
    notes = plan_case(weighted("1:0,0:500", "1:0")).notes
    assert notes == ("D0 is paused from 500 ms on for good: it must be done by then.",)


def test_sizes_of_a_bundle(outside: Path, tmp_path: Path) -> None:
    path = tmp_path / "in.bin"
    np.zeros((5, HIDDEN), "<u2").tofile(path)
    plan = plan_case(fed("bundle", outside, path))
    size = sum(file.stat().st_size for file in outside.rglob("*") if file.is_file() and file.name != "manifest.json")
    assert plan.memory == {"m": size}
    # Three layers, two heads, keys and values of 10 float32.
    assert (plan.dialogs[0].cache_bytes, plan.dialogs[0].prompt_tokens) == (3 * 2 * 20 * 4 * CONTEXT, 5)


def test_what_isnt_here_isnt_known(tmp_path: Path) -> None:
    plan = plan_case(fed("bundle", tmp_path / "gone"))
    assert (plan.memory, plan.dialogs[0].prompt_tokens, plan.dialogs[0].cache_bytes) == ({"m": None}, None, None)


def test_tokens_of_texts_and_files(talking: Path, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("1 2 3 4")
    (tmp_path / "text").write_text("hello")
    model = ModelSpec(name="m", bundle=talking)
    asked = [
        InputSpec(prompt="abc"),
        InputSpec(prompt_file=tmp_path / "text"),
        InputSpec(tokens_file=tmp_path / "ids"),
        InputSpec(prompt_file=tmp_path / "gone"),
    ]
    dialogs = tuple(DialogSpec(name=f"D{i}", model="m", input=one) for i, one in enumerate(asked))
    plan = plan_case(Case(name="c", models=(model,), dialogs=dialogs))
    assert [dialog.prompt_tokens for dialog in plan.dialogs] == [3, 5, 4, None]
