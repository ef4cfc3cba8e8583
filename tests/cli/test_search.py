from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edgewright.cli._main import main
from edgewright.quant.recipe_file import load_recipe

from .conftest import Cli
from .tiny import the_sentence

SMALL = ("--sequences", 4, "--length", 24, "--threads", 1)


def test_a_recipe_that_deploys(cli: Cli, talker: Path, tmp_path: Path) -> None:
    result = cli("search", talker, "--budget", "size=80kB", *SMALL, "-o", tmp_path / "mix.yaml")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == f"{tmp_path / 'mix.yaml'}: written"
    assert [line.split()[0] for line in lines[1:]] == ["weights", "KL", "estimated", "perplexity", "evaluations"]
    assert "evaluate 1 mix" in result.err
    recipe = load_recipe(str(tmp_path / "mix.yaml"))
    assert recipe.data.sequences == 4
    deployed = cli("deploy", talker, "--recipe", tmp_path / "mix.yaml", "-o", tmp_path / "bundle", "--json", "--quiet")
    assert deployed.code == 0, deployed.err
    assert json.loads(deployed.out)["verdict"]["status"] == "passed"
    assert (tmp_path / "bundle" / "stages" / "llm" / "weights.bin").stat().st_size <= 80_000


def test_json_with_a_check(cli: Cli, talker: Path, tmp_path: Path) -> None:
    arguments = ("search", talker, "--budget", "kl=0.01", "--formats", "int4/64,int8", "--check", "--json", "--quiet")
    result = cli(*arguments, *SMALL, "-o", tmp_path / "mix.yaml")
    assert result.code == 0, result.err
    assert not result.err
    data = json.loads(result.out)
    assert data["measured"]["kl"] <= 0.01
    assert sum(data["formats"].values()) == len(data["modules"])
    assert sum(module["bytes"] for module in data["modules"]) <= data["bytes"]
    assert sum(module["kl"] for module in data["modules"]) == pytest.approx(data["estimated_kl"])
    assert data["check"]["singles"] == 2 * len(data["modules"])
    assert data["check"]["greedy_evaluations"] == data["check"]["singles"] + 1
    assert data["calibration"] == {"source": "english", "sequences": 4, "length": 24, "seed": 0, "held_out": 1}


def test_latency(cli: Cli, talker: Path, tmp_path: Path) -> None:
    result = cli("search", talker, "--budget", "latency=10s", *SMALL, "-o", tmp_path / "mix.yaml")
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1].startswith("latency ")


@pytest.mark.parametrize(
    ("arguments", "parts", "code"),
    [
        (["--budget", "0MB"], ["'0MB' is no budget: write size=90MB, latency=12ms or kl=0.05"], 2),
        (["--budget", "size=5 parsecs"], ["'size=5 parsecs' is no budget"], 2),
        (["--budget", "size=1kB"], ["the cheapest formats take ", "the budget is 1 kB"], 2),
        (["--budget", "kl=1", "--formats", "int4"], ["leaves nothing to choose"], 2),
        (["--budget", "kl=1", "--formats", "int4,int3"], ["int3"], 2),
        (["--budget", "kl=1", "--recipe", "int4-awq"], ["The recipe int4-awq has awq"], 3),
        (["--budget", "kl=1", "--recipe", "no-such"], ["There is no recipe 'no-such'"], 3),
        (["--budget", "kl=1", "--data", "no-such.txt"], ["no-such.txt do not exist"], 3),
        (["--budget", "kl=1", "--ray", "127.0.0.1:1"], ["The Ray cluster '127.0.0.1:1' can't be reached"], 4),
        ([], ["--budget"], 2),
    ],
)
def test_wrong_wishes(
    cli: Cli, talker: Path, tmp_path: Path, arguments: list[str], parts: list[str], code: int
) -> None:
    if "--ray" in arguments:
        pytest.importorskip("ray", reason="the extra ray is not installed")
    result = cli("search", talker, *arguments, *SMALL, "-o", tmp_path / "mix.yaml", "--quiet")
    assert result.code == code, result.err
    the_sentence(result.err, *parts)
    assert not list(tmp_path.iterdir())


def test_without_ray(cli: Cli, talker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = cli("search", talker, "--budget", "kl=1", "--ray", "local", *SMALL, "-o", tmp_path / "mix.yaml", "--quiet")
    assert result.code == 4
    the_sentence(result.err, "--ray needs the package ray", "pip install 'edgewright[ray]'")


def test_a_quantized_checkpoint_is_refused(cli: Cli, talker: Path, tmp_path: Path) -> None:
    assert main(["quantize", str(talker), "--recipe", "int8", "-o", str(tmp_path / "quantized"), "--quiet"]) == 0
    result = cli("search", tmp_path / "quantized", "--budget", "kl=1", "-o", tmp_path / "mix.yaml", "--quiet")
    assert result.code == 3
    the_sentence(result.err, "The checkpoint is quantized already", "search on the original")
