"""The stand-in obeys the rules of the real program that can be seen from outside."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from .conftest import ENCODING, STAND_IN, Desk


def start(*words: object, stand_in: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"STAND_IN": stand_in}
    return subprocess.run([*STAND_IN, *map(str, words)], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_usage(words: list[str]) -> None:
    done = start(*words)
    assert (done.returncode, done.stdout) == (0, "Usage: genie-t2t-run [options]\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-k", "a=b"], "Unknown option: -k"),
        (["--concurrent-stride", "1,2"], "Unknown option: --concurrent-stride"),
        (["-c"], "ERROR: Invalid parameter for argument: -c"),
        (["-c", "x", "-e", "no.bin", "-p", "hi"], "ERROR: Invalid embedding argument"),
        (["-e", "a.bin,uint16,0.1"], "ERROR: Invalid embedding argument"),
        (["-e", "a.bin,float32,0.1,3"], "ERROR: invalid datatype"),
        (["-e", "a.bin,int8,x,3"], "ERROR: Invalid quantization encodings: {x,3}"),
        (["-c", "x"], "ERROR: there is neither a prompt"),
        (["--log", "loud"], "ERROR: Invalid --log"),
        (
            ["--concurrent", "-c", "x", "-p", "hi", "--concurrent-config", "y"],
            "ERROR: the number of concurrent configs",
        ),
        (["--concurrent", "--concurrent-stride0", "1@0"], "ERROR: Invalid stride timeline: 1@0"),
        (
            ["--concurrent", "-p", "hi", "--concurrent-stride", "1", "--concurrent-priorities", "1"],
            "ERROR: stride and priorities exclude each other.",
        ),
    ],
)
def test_wrong_command_lines(words: list[str], text: str) -> None:
    done = start(*words)
    assert done.returncode == 1
    assert done.stdout.startswith(text)


def test_the_order_of_its_checks(desk: Desk) -> None:
    embeds, table = desk.folder / "embeds.bin", desk.folder / "table.bin"
    both = start("-c", "x", "-e", embeds, "-p", "hi", "-t", table)
    assert both.stdout == "ERROR: an embedding file and a prompt exclude each other.\n"
    alone = start("-c", "x", "-t", table, "-p", "hi")
    assert alone.stdout == "ERROR:: a table needs an embedding file.\n"
    assert start("-c", "x", "-p", "a", "--prompt_file", "b").stdout.startswith("ERROR: a prompt and a prompt file")
    # A profile is looked at while the words are read, an unknown option before it comes first.
    there = desk.folder / "prompt.txt"
    assert "already exists" in start("--profile", there, "--nonsense").stdout
    assert "Unknown option" in start("--nonsense", "--profile", there).stdout


def profile(desk: Desk, *words: object, stand_in: str = "") -> tuple[Any, subprocess.CompletedProcess[str]]:
    path = desk.folder / "profile.json"
    done = start(*words, "--profile", path, stand_in=stand_in)
    return json.loads(path.read_text()) if path.exists() else None, done


def test_one_dialog(desk: Desk) -> None:
    data, done = profile(desk, "-c", desk.config(tokens=3), "--prompt_file", desk.folder / "prompt.txt")
    assert done.returncode == 0
    assert done.stdout == ("Using libGenie.so version 1.13.0\n[PROMPT]: one two three\n\n[BEGIN]:  w0 w1 w2[END]\n")
    (component,) = data["components"]
    created, asked = component["events"]
    assert (component["name"], created["type"], asked["type"]) == ("dialog0", "GenieDialog_create", "GenieDialog_query")
    assert asked["num-generated-tokens"] == {"value": 3, "unit": ""}
    assert asked["stop"] == asked["start"] + asked["duration"]


def test_embeddings_with_and_without_a_table(desk: Desk) -> None:
    embeds = f"{desk.folder / 'embeds.bin'},{ENCODING}"
    data, done = profile(desk, "-c", desk.config(tokens=3), "-e", embeds)
    assert done.stdout.endswith("Embedding file size: 80 bytes\n[BEGIN]:  w0[END]\n")
    assert data["components"][0]["events"][1]["num-prompt-tokens"]["value"] == 5
    (desk.folder / "profile.json").unlink()
    _, done = profile(desk, "-c", desk.config(tokens=3), "-e", embeds, "-t", f"{desk.folder / 'table.bin'},{ENCODING}")
    assert done.stdout.endswith("[BEGIN]:  w0 w1 w2[END]\n")


@pytest.mark.parametrize("how", ["context", "throw", "create", "abort"])
def test_a_failure_writes_no_profile(desk: Desk, how: str) -> None:
    data, done = profile(desk, "-c", desk.config(fail=how), "-p", "hi")
    assert (data, done.returncode) == (None, 1)
    assert done.stderr.startswith("Failed to ")


def test_late_errors(desk: Desk) -> None:
    embeds = desk.folder / "embeds.bin"
    mixed = start("-c", desk.config(), "-e", embeds, "-t", f"{desk.folder / 'table.bin'},{ENCODING}")
    assert (mixed.returncode, mixed.stderr) == (1, "Unsupported LUT requantization: uint16 -> float32\n")
    embeds.write_bytes(bytes(3))
    assert start("-c", desk.config(), "-e", f"{embeds},{ENCODING}").stderr == "Failed to query the dialog: status -6\n"
    assert start("-c", "gone.json", "-p", "hi").returncode == 1
    assert start("-c", desk.config(), "-p", "").stderr == "Failed to query the dialog: status -2\n"


def test_no_tokens_and_one_token(desk: Desk) -> None:
    data, _ = profile(desk, "-c", desk.config(tokens=0), "-p", "hi")
    asked = data["components"][0]["events"][1]
    assert asked["num-generated-tokens"]["value"] == asked["token-generation-time"]["value"] == 0


def test_eleven_dialogs_stand_in_the_order_of_letters(desk: Desk) -> None:
    embeds = f"{desk.folder / 'embeds.bin'},{ENCODING}"
    config = desk.config(tokens=1, step_ms=0)
    words = ["--concurrent", "--iterations", 2, "-c", config, "-p", "hi"]
    for _ in range(10):
        words += ["--concurrent-config", config, "--concurrent-embed", embeds]
    data, done = profile(desk, *words)
    names = [component["name"] for component in data["components"]]
    assert names[:4] == ["dialog0", "dialog1", "dialog10", "dialog2"]
    assert {len(component["events"]) for component in data["components"]} == {3}
    assert done.stderr.count(" us\n") == 22
    assert done.stdout.count("[END]\n") == 22
