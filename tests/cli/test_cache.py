"""`edgewright cache`: what builds keep is shown, measured and deleted; damage costs a note, not a build."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edgewright.files import cache_home, quantized_home, steps_home
from edgewright.locks import try_lock

from .conftest import Cli

MSE = "body: {format: int4, algorithm: mse}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
STEPS = ["stage llm", "stage llm compiled for cpu"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGEWRIGHT_CACHE_BYTES", "5000000")


@pytest.fixture
def built(cli: Cli, llama: Path, tmp_path: Path) -> Path:
    """A bundle of a recipe that makes a quantized checkpoint first."""
    (tmp_path / "mse.yaml").write_text(MSE)
    words = ("deploy", llama, "-o", tmp_path / "b", "--recipe", tmp_path / "mse.yaml", "--no-verify", "--quiet")
    assert cli(*words).code == 0
    return tmp_path / "b"


def test_an_empty_cache(cli: Cli, tmp_path: Path) -> None:
    assert cli("cache") == cli("cache", "list")
    assert (cli("cache").code, cli("cache").out, cli("cache").err) == (0, "", "the cache is empty\n")
    assert json.loads(cli("cache", "list", "--json").out) == []
    assert cli("cache", "clear").out == "0 entries deleted, 0 B\n"
    assert not (tmp_path / "cache").exists()


def test_what_is_there_is_shown(built: Path, cli: Cli) -> None:
    found = json.loads(cli("cache", "list", "--json").out)
    assert [one["kind"] for one in found] == ["finished step", "finished step", "quantized checkpoint"]
    assert [one["title"] for one in found] == [*(f"llama: {step}" for step in STEPS), "recipe mse"]
    weights = (built / "stages/llm/weights.bin").stat().st_size
    assert found[0]["bytes"] > weights + (built / "stages/llm/model.onnx").stat().st_size
    lines = cli("cache", "list").out.splitlines()
    assert lines[0].split() == ["kind", "what", "bytes", "last", "used"]
    assert [line.startswith(("finished step", "quantized checkpoint")) for line in lines[1:]] == [True] * 3
    sizes = json.loads(cli("cache", "size", "--json").out)
    assert sizes["path"] == str(cache_home())
    assert sizes["limit_bytes"] == 5_000_000
    assert sizes["bytes"]["finished step"] == found[0]["bytes"] + found[1]["bytes"]
    assert sizes["bytes"]["quantized checkpoint"] == found[2]["bytes"]
    assert sizes["bytes"]["unfinished calibration"] == 0
    assert "finished steps take at most 5 MB" in cli("cache", "size").out


def test_clear_deletes_finished_steps_and_with_all_the_rest(built: Path, cli: Cli) -> None:
    (cache_home() / "quantizing" / "0123").mkdir(parents=True, exist_ok=True)
    (cache_home() / "tools").mkdir()
    (cache_home() / "tools" / "chipcc-llm.log").write_text("no such op")
    assert cli("cache", "clear").out.startswith("2 entries deleted, ")
    assert list(steps_home().iterdir()) == []
    assert len(json.loads(cli("cache", "list", "--json").out)) == 2
    assert len([path for path in quantized_home().iterdir() if path.is_dir()]) == 1
    done = json.loads(cli("cache", "clear", "--all", "--json").out)
    assert [one["kind"] for one in done["deleted"]] == ["quantized checkpoint", "unfinished calibration"]
    assert done["in_use"] == []
    assert json.loads(cli("cache", "list", "--json").out) == []
    assert [path for path in cache_home().rglob("*") if path.is_file()] == []
    assert (built / "manifest.json").is_file()


def test_what_is_in_use_stays(built: Path, cli: Cli) -> None:
    folder = next(path for path in sorted(steps_home().iterdir()) if path.is_dir())
    work = cache_home() / "quantizing" / "0123"
    locks = [try_lock(folder.with_name(f"{folder.name}.lock")), try_lock(work / "lock")]
    result = cli("cache", "clear", "--all")
    assert result.out.startswith("2 entries deleted, ")
    assert result.err == "note: 2 entries stay: a build works with them\n"
    assert folder.is_dir()
    assert work.is_dir()
    for lock in locks:
        assert lock is not None
        lock.close()
    assert cli("cache", "clear", "--all").out.startswith("2 entries deleted, ")


def test_a_corrupted_cache_is_made_anew_with_a_note(built: Path, cli: Cli, llama: Path, tmp_path: Path) -> None:
    for path in steps_home().rglob("*.onnx"):
        path.write_bytes(path.read_bytes()[:-1])
    recipe = tmp_path / "mse.yaml"
    result = cli("deploy", llama, "-o", tmp_path / "c", "--recipe", recipe, "--no-verify")
    assert result.code == 0
    notes = [line for line in result.err.splitlines() if line.startswith("note: ")]
    assert notes == [
        f"note: The cache's copy of a finished step ({step}) is damaged: it is dropped, and the step is done again."
        for step in STEPS
    ]
    for name in ("stages/llm/weights.bin", "stages/llm/engine.onnx", "manifest.json"):
        assert (tmp_path / "c" / name).read_bytes() == (built / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("cache", "wash"), 2, "invalid choice: 'wash'"),
        (("cache", "list", "--all"), 2, "--all is for cache clear"),
        (("cache", "size", "--all"), 2, "--all is for cache clear"),
    ],
)
def test_bad_words(words: tuple[str, ...], code: int, sentence: str, cli: Cli) -> None:
    result = cli(*words)
    assert (result.code, result.out) == (code, "")
    assert sentence in result.err


def test_a_limit_that_is_no_number(cli: Cli, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWRIGHT_CACHE_BYTES", "20GB")
    for words in (("cache", "size"), ("deploy", llama, "-o", tmp_path / "b", "--no-verify", "--quiet")):
        result = cli(*words)
        assert result.code == 2
        assert result.err == (
            "edgewright: error: EDGEWRIGHT_CACHE_BYTES is '20GB': give a number of bytes, 0 to keep no finished "
            "steps.\n"
        )
    assert not (tmp_path / "b").exists()


def test_names_from_the_cache_are_safe_to_show(cli: Cli, llama: Path, tmp_path: Path) -> None:
    """A model's name may hold what a terminal would obey, and a damaged report must not be in the way of a clear."""
    source = shutil.copytree(llama, tmp_path / "red\x1b[31m\nname")
    assert cli("deploy", source, "-o", tmp_path / "b", "--no-verify", "--recipe", "float32", "--quiet").code == 0
    (quantized_home() / "deep").mkdir(parents=True)
    (quantized_home() / "deep" / "quantization_report.json").write_text("[" * 100_000)
    lines = cli("cache").out.splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["red?[31m?name:", "red?[31m?name:", "deep"]
    assert "\x1b" not in "".join(lines)
    assert cli("cache", "clear", "--all").code == 0
    assert cli("cache").err == "the cache is empty\n"
