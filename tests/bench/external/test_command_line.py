"""The external runner from the command line: a case file with a runner, and the program's own flags."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from edgewright.cli import main

from .conftest import ENCODING, STAND_IN, Desk


@pytest.fixture
def words(desk: Desk) -> list[str]:
    """The requirement's command line."""
    config = str(desk.config("vlm.json", tokens=4))
    embeds = ["--concurrent-config", config, "--concurrent-embed", f"{desk.folder / 'embeds.bin'},{ENCODING}"]
    return [
        *("--concurrent", "--priority", "200", "--iterations", "2", "-c", str(desk.config(tokens=3))),
        *("--prompt_file", str(desk.folder / "prompt.txt"), "-t", f"{desk.folder / 'table.bin'},{ENCODING}"),
        *embeds,
        *embeds,
        *("--concurrent-stride", "4,2,1"),
    ]


def test_old_scripts_run_on_a_device(desk: Desk, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    profile, out = desk.folder / "profile.json", desk.folder / "out"
    runner = shlex.join(STAND_IN)
    code = main(["genie-t2t-run", "--runner", runner, *words, "--profile", str(profile), "--output", str(out)])
    said = capfd.readouterr()
    assert code == 0, said.err
    assert said.out.count("[END]") == 6
    (folder,) = out.glob("*/*")
    assert profile.read_bytes() == (folder / "profile.json").read_bytes()
    command = (folder / "executions" / "run-0" / "command.txt").read_text()
    assert shlex.split(command)[-2:] == ["--concurrent-stride", "4,2,1"]
    assert "--priority 200" in command


def test_a_failed_run_has_no_profile(desk: Desk, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    desk.config(fail="context")
    profile, out = desk.folder / "profile.json", desk.folder / "out"
    code = main(
        ["genie-t2t-run", "--runner", shlex.join(STAND_IN), *words, "--profile", str(profile), "--output", str(out)]
    )
    assert code == 1
    assert not profile.exists()
    assert "status 4" in capfd.readouterr().err


def test_a_case_file(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    """Paths of a device are not looked for here, and stay as they are written."""
    desk.config(tokens=3)
    case = {
        "version": 1,
        "name": "device",
        "models": {"llm": {"genie": "llm.json"}},
        "dialogs": [{"model": "llm", "input": {"prompt_file": "prompt.txt"}}],
        "run": {"warmup": 0, "solo": False},
        "runner": {
            "command": [desk.tool("adb"), "shell", "cd", str(desk.folder), "&&", *STAND_IN],
            "profile_dir": str(desk.device),
        },
    }
    path = desk.folder / "elsewhere" / "case.json"
    path.parent.mkdir()
    path.write_text(json.dumps(case))
    assert main(["bench", "run", str(path), "-o", str(desk.folder / "out"), "--run-id", "r"]) == 0
    assert "device / r: complete" in capfd.readouterr().out
    folder = desk.folder / "out" / "device" / "r"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["dialogs"]["D0"]["genie"]["num-generated-tokens"]["mean"] == 3
    assert " -c llm.json --prompt_file prompt.txt " in (folder / "executions" / "run-0" / "command.txt").read_text()


def test_a_runner_that_cant_be_used(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    path = desk.folder / "case.json"
    data = {
        "version": 1,
        "models": {"llm": {"bundle": "b"}},
        "dialogs": [{"model": "llm", "input": {"prompt": "hi"}}],
        "runner": {"command": ["adb", "shell", "g"], "profile_dir": "a b"},
    }
    path.write_text(json.dumps(data))
    assert main(["bench", "validate", str(path)]) == 2
    assert "profile_dir 'a b'" in capfd.readouterr().out
    data["runner"] = {"command": ["adb", "shell", "g"]}
    path.write_text(json.dumps(data))
    assert main(["bench", "run", str(path), "-o", str(desk.folder / "out")]) == 2
    assert "names no Genie dialog configuration" in capfd.readouterr().err
    assert not Path(desk.folder / "out").exists()
