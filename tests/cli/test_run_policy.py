"""`edgewright run` on policies: the actions of the goldens, and what is refused."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import policy_goldens as goldens
from edgewright.bundle import read_manifest, write_manifest
from edgewright.cli import run
from edgewright.cli._parser import Parser
from edgewright.runtime import npz

from .conftest import Cli
from .tiny import the_sentence

SCENARIO = "three_cameras"


def arrays(scenario: str = SCENARIO) -> dict[str, Any]:
    """The observation of a scenario, without its prompt."""
    cameras = goldens.policy_scenarios("pi05")[scenario]["cameras"]
    found = {name: goldens.read("pi05", scenario, f"image.{name}")[0] for name in cameras}
    return {**found, "state": goldens.read("pi05", scenario, "state")[0]}


def prompt(scenario: str = SCENARIO) -> str:
    return str(goldens.policy_scenarios("pi05")[scenario]["prompts"][0])


@pytest.fixture
def observation(tmp_path: Path) -> Path:
    path = tmp_path / "observation.npz"
    np.savez(path, prompt=np.array(prompt()), **arrays())
    return path


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    path = tmp_path / "noise.npz"
    np.savez(path, noise=goldens.read("pi05", SCENARIO, "noise")[0])
    return path


def test_the_actions_are_those_of_the_original(cli: Cli, policy_bundle: Path, observation: Path, noise: Path) -> None:
    result = cli("run", policy_bundle, "--observation", observation, "--noise", noise, "--json")
    assert (result.code, result.err) == (0, "")
    data = json.loads(result.out)
    wanted = goldens.read("pi05", SCENARIO, "actions")[0]
    np.testing.assert_allclose(data["actions"], wanted, atol=1e-4)
    normalized = goldens.read("pi05", SCENARIO, "actions_normalized")[0]
    np.testing.assert_allclose(data["normalized"], normalized, atol=1e-4)
    assert data["kind"] == "pi05"
    assert len(data["timings"]["denoise_ms"]) == 10
    parts = [data["timings"][f"{name}_ms"] for name in ("prepare", "vision", "prefix")]
    assert 0 < sum(parts) + sum(data["timings"]["denoise_ms"]) <= data["timings"]["total_ms"] + 0.1


def test_an_observation_in_the_names_of_openpi(cli: Cli, tmp_path: Path) -> None:
    """Built and run on the command line alone, with what openpi's folder doesn't say."""
    case, scenario = "pi05_libero", "two_cameras"
    source = goldens.POLICY_GOLDENS / case / "checkpoint"
    words = ["--no-discrete-state", "--state-dim", 8, "--action-dim", 7, "--max-prompt", 40, "--steps", 3]
    words += ["--tokenizer", goldens.TOKENIZER, "--recipe", "float32", "--no-verify"]
    assert cli("deploy", source, "-o", tmp_path / "bundle", *words).code == 0
    names = {"observation/image": "base_0_rgb", "observation/wrist_image": "left_wrist_0_rgb"}
    observed = {key: goldens.read(case, scenario, f"image.{camera}")[0] for key, camera in names.items()}
    observed["observation/state"] = goldens.read(case, scenario, "state")[0]
    text = str(goldens.policy_scenarios(case)[scenario]["prompts"][0])
    np.savez(tmp_path / "observation.npz", prompt=np.array(text), **observed)
    np.savez(tmp_path / "noise.npz", noise=goldens.read(case, scenario, "noise")[0])
    result = cli(
        "run",
        tmp_path / "bundle",
        "--observation",
        tmp_path / "observation.npz",
        "--noise",
        tmp_path / "noise.npz",
        "--json",
    )
    assert (result.code, result.err) == (0, "note: no image of right_wrist_0_rgb: it is masked\n")
    wanted = goldens.read(case, scenario, "actions")[0]
    np.testing.assert_allclose(json.loads(result.out)["actions"], wanted, atol=1e-4)


def test_the_table_shows_them(cli: Cli, policy_bundle: Path, observation: Path, noise: Path) -> None:
    result = cli("run", policy_bundle, "--observation", observation, "--noise", noise)
    head, *rows = result.out.splitlines()
    assert head.split("  ")[0] == "step"
    wanted = goldens.read("pi05", SCENARIO, "actions")[0]
    shown = np.array([[float(cell) for cell in row.split()] for row in rows[: len(wanted)]])
    np.testing.assert_array_equal(shown[:, 0], np.arange(12))
    np.testing.assert_allclose(shown[:, 1:], wanted, atol=1e-4)
    blank, load, times = rows[len(wanted) :]
    assert (blank, load[:5]) == ("", "load ")
    assert "(10 x " in times


def test_the_seed_decides_over_the_noise(cli: Cli, policy_bundle: Path, observation: Path) -> None:
    def actions(*words: object) -> Any:
        return json.loads(cli("run", policy_bundle, "--observation", observation, "--json", *words).out)["actions"]

    assert actions() == actions("--seed", 0) == actions("--steps", 10)
    assert actions("--seed", 1) == actions("--seed", 1) != actions("--seed", 2)


def test_the_prompt_may_come_from_the_command_line(
    cli: Cli, policy_bundle: Path, observation: Path, noise: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "plain.npz", **arrays())
    (tmp_path / "prompt.txt").write_text(prompt() + "\n")
    wanted = json.loads(cli("run", policy_bundle, "--observation", observation, "--noise", noise, "--json").out)
    for words in (["--prompt", prompt()], ["--prompt-file", tmp_path / "prompt.txt"]):
        words += ["--observation", tmp_path / "plain.npz", "--noise", noise, "--json"]
        assert json.loads(cli("run", policy_bundle, *words).out)["actions"] == wanted["actions"]
    result = cli("run", policy_bundle, "--observation", observation, "--prompt", "another")
    assert result.code == 2
    the_sentence(result.err, "observation.npz has a prompt already")
    result = cli("run", policy_bundle, "--observation", tmp_path / "plain.npz")
    assert result.code == 3
    the_sentence(result.err, "The observation has no prompt")


def test_notes_go_to_stderr(cli: Cli, policy_bundle: Path, noise: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "long.npz", prompt="word " * 200, **arrays())
    result = cli("run", policy_bundle, "--observation", tmp_path / "long.npz", "--noise", noise)
    assert result.code == 0
    assert result.err.startswith("note: ")
    assert cli("run", policy_bundle, "--observation", tmp_path / "long.npz", "--quiet").err == ""


def test_what_the_runtime_refuses(cli: Cli, policy_bundle: Path, observation: Path, tmp_path: Path) -> None:
    result = cli("run", policy_bundle, "--observation", observation, "--steps", 3)
    assert result.code == 3
    the_sentence(result.err, "built for 10 steps")
    np.savez(tmp_path / "bad.npz", **{**arrays(), "state": np.full(8, np.nan)}, prompt="x")
    result = cli("run", policy_bundle, "--observation", tmp_path / "bad.npz")
    assert result.code == 3
    the_sentence(result.err, "state is NaN or infinite")
    np.savez(tmp_path / "double.npz", noise=np.zeros((12, 32)))
    result = cli("run", policy_bundle, "--observation", observation, "--noise", tmp_path / "double.npz")
    assert result.code == 3
    the_sentence(result.err, "The noise is float64 [12, 32]")


class Evil:
    """Something that only a pickle can hold."""


def test_files_that_hold_no_arrays(cli: Cli, policy_bundle: Path, observation: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"

    def refused(code: int, *parts: str) -> None:
        result = cli("run", policy_bundle, "--observation", bad)
        assert result.code == code
        the_sentence(result.err, "bad.npz", *parts)

    refused(2, "No such file")
    bad.write_bytes(b"PK\x03\x04 no archive")
    refused(3, "can't be read as a .npz file")
    np.save(bad.with_suffix(".npy"), np.zeros(3))
    bad.with_suffix(".npy").rename(bad)
    refused(3, "can't be read as a .npz file")
    np.savez(bad, prompt=np.array([Evil()], dtype=object))
    refused(3, "holds Python objects")
    data = observation.read_bytes()
    for cut in (30, len(data) // 2, len(data) - 30):
        bad.write_bytes(data[:cut])
        refused(3, "can't be read as a .npz file")
    bad.write_bytes(data[:200] + bytes([data[200] ^ 255]) + data[201:])
    refused(3, "can't be read as a .npz file")
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("state.txt", "1 2 3")
    refused(3, "state.txt, which is no array")


def test_a_file_that_unpacks_to_too_much(
    cli: Cli, policy_bundle: Path, observation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz, "MAX_BYTES", 1000)
    result = cli("run", policy_bundle, "--observation", observation)
    assert result.code == 3
    the_sentence(result.err, "unpacks to more than")


def test_noise_of_another_name(cli: Cli, policy_bundle: Path, observation: Path) -> None:
    result = cli("run", policy_bundle, "--observation", observation, "--noise", observation)
    assert result.code == 3
    the_sentence(result.err, "not one array named noise")


def test_an_observation_is_needed(cli: Cli, policy_bundle: Path) -> None:
    result = cli("run", policy_bundle)
    assert result.code == 2
    the_sentence(result.err, "give --observation FILE.npz")


LLM_ONLY = {
    "--prompt-ids": ["1"], "--chat": [], "--raw": [], "--system": ["x"], "--max-tokens": ["256"],
    "--temperature": ["0"], "--top-k": ["0"], "--top-p": ["1"], "--min-p": ["0"], "--repetition-penalty": ["1"],
    "--presence-penalty": ["0"], "--frequency-penalty": ["0"], "--stop": ["x"], "--ids": [], "--stats": [],
}  # fmt: skip


@pytest.mark.parametrize("flag", LLM_ONLY)
def test_flags_of_language_models_are_refused(cli: Cli, policy_bundle: Path, observation: Path, flag: str) -> None:
    """Also with the value that is the default."""
    result = cli("run", policy_bundle, "--observation", observation, flag, *LLM_ONLY[flag])
    assert result.code == 2
    the_sentence(result.err, "holds a robot policy", f"{flag} has a meaning for language models only")


def test_every_flag_is_for_somebody() -> None:
    parser = Parser("edgewright run", "")
    run.add_arguments(parser)
    both = {"--prompt", "--prompt-file", "--seed", "--threads", "--json", "--help"}
    assert set(parser._flags()) == both | set(run.LLM_FLAGS) | set(run.POLICY_FLAGS)
    assert set(run.LLM_FLAGS) == set(LLM_ONLY)


@pytest.mark.parametrize(("flag", "value"), [("--observation", "x.npz"), ("--noise", "x.npz"), ("--steps", "10")])
def test_flags_of_policies_are_refused(cli: Cli, plain_bundle: Path, flag: str, value: str) -> None:
    result = cli("run", plain_bundle, "--prompt-ids", "1", f"{flag}={value}")
    assert result.code == 2
    the_sentence(result.err, "holds a language model", f"{flag} has a meaning for robot policies only")
    result = cli("run", plain_bundle, flag, value, "--steps", 3, "--noise", "y", "--observation", "z")
    the_sentence(result.err, "--observation and --noise and --steps have a meaning for robot policies only")


def test_a_failed_verdict_is_told(cli: Cli, policy_bundle: Path, observation: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(policy_bundle, tmp_path / "failed"))
    manifest = read_manifest(folder)
    write_manifest(folder, replace(manifest, verdict={**manifest.verdict, "status": "failed"}))
    result = cli("run", folder, "--observation", observation)
    assert result.code == 0
    assert "warning: this bundle failed its verification" in result.err
    result = cli("bench", folder, "--repeats", 1)
    assert result.code == 0
    assert "warning: this bundle failed its verification" in result.err
