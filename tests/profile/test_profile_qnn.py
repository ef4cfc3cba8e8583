from __future__ import annotations

from pathlib import Path

import pytest
from profile_cases import GOLDENS

from edgewright.errors import ProfileError
from edgewright.profile.qnn import read_qnn

HEAD = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier\n"


def written(path: Path, *rows: str) -> Path:
    path.write_text(HEAD + "".join(f"0,{row}\n" for row in rows), encoding="utf-8")
    return path


def test_the_simulator_s_file_has_three_executions() -> None:
    profile = read_qnn(GOLDENS / "qnn.csv")
    assert [run.us for run in profile.runs] == [36361, 37760, 19348]
    first = profile.runs[0]
    assert [event.name for event in first.events] == [
        "Input", "model.layers.0.mlp.up_proj/Linear", "yReshape", "Output",
    ]  # fmt: skip
    # 12,203 of 17,682 cycles of the accelerator's 36,243 us.
    assert first.events[1].us == pytest.approx(36243 * 12203 / 17682)
    assert sum(event.us for event in first.events) == pytest.approx(36243)
    assert first.events[1].start_us == pytest.approx(first.events[0].us)


def test_names_without_what_the_provider_adds(tmp_path: Path) -> None:
    names = ["m/Linear:0:OpId_7 (cycles)", "a OpId_2 (cycles)", "OpId_26 (cycles)", "b (cycles)", "OpId_x", "c\x1b[2J"]
    rows = ["EXECUTE,100,US,BACKEND,ROOT,NULL", *(f"NODE,1,US,BACKEND,SUB-EVENT,{name}" for name in names)]
    (run,) = read_qnn(written(tmp_path / "p.csv", *rows)).runs
    assert [event.name for event in run.events] == [
        "m/Linear:0", "a", "OpId_26 (cycles)", "b", "OpId_x", r"c\x1b[2J",
    ]  # fmt: skip


def test_nodes_in_microseconds_and_another_order(tmp_path: Path) -> None:
    rows = [
        "EXECUTE,100,US,BACKEND,ROOT,NULL",
        "NODE,30,US,BACKEND,SUB-EVENT,a:OpId_1",
        "NODE,20,US,BACKEND,SUB-EVENT,b",
        "EXECUTE,90,US,BACKEND,ROOT,NULL",
        "NODE,25,US,BACKEND,SUB-EVENT,a:OpId_1",
    ]
    runs = read_qnn(written(tmp_path / "p.csv", *rows)).runs
    assert [(run.us, [(event.name, event.us) for event in run.events]) for run in runs] == [
        (100, [("a", 30), ("b", 20)]),
        (90, [("a", 25)]),
    ]
    assert runs[0].shape != runs[1].shape


def test_cycles_beyond_the_accelerator_s_count_share_its_time(tmp_path: Path) -> None:
    rows = ["NODE,60,CYCLES,BACKEND,SUB-EVENT,a", "NODE,140,CYCLES,BACKEND,SUB-EVENT,b",
            "BACKEND,100,CYCLES,BACKEND,ROOT,Accelerator (execute) time (cycles)",
            "BACKEND,10,US,BACKEND,ROOT,Accelerator (execute) time"]  # fmt: skip
    (run,) = read_qnn(written(tmp_path / "p.csv", *rows)).runs
    assert [event.us for event in run.events] == [3.0, 7.0]
    assert run.us == 10


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lacks the columns"),
        ("a,b\n1,2\n", "lacks the columns"),
        ('{"messages": []}', "is JSON"),
        (HEAD, "no execution with nodes"),
        (HEAD + "0,NODE,1\n", "line 2 ends too early"),
        (HEAD + "0,NODE,x,US,B,SUB-EVENT,a\n", "time 'x'"),
        (HEAD + "0,NODE,-1,US,B,SUB-EVENT,a\n", "time '-1'"),
        (HEAD + "0,NODE,1e5,US,B,SUB-EVENT,a\n", "time '1e5'"),
        (HEAD + "0,NODE," + "9" * 40 + ",US,B,SUB-EVENT,a\n", "where a number is needed"),
        (HEAD + "0,NODE,1,PARSECS,B,SUB-EVENT,a\n", "PARSECS"),
        (HEAD + "0,NODE,1,CYCLES,B,SUB-EVENT,a\n", "no time of the accelerator"),
        (HEAD + '0,NODE,1,US,B,SUB-EVENT,"a"b\n', "no CSV"),
        (HEAD + "0,NODE,1,US,B,SUB-EVENT,a" + " " * 130_000 + "b\n", "a name of 130,002 characters"),
        (HEAD + "0,NODE,1,US,B,SUB-EVENT," + "a" * 200_000 + "\n", "no CSV"),
    ],
)
def test_hostile_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError, match=words) as error:
        read_qnn(path)
    assert len(str(error.value)) < 400
