from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from edgewright.calibration import read_shards

from .conftest import Cli
from .tiny import the_sentence


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"Line {n} of a text, {n * n} words long.\n" for n in range(200)), encoding="utf-8")
    return path


def test_a_text(cli: Cli, talker: Path, text: Path, tmp_path: Path) -> None:
    result = cli("calibrate", talker, "--data", text, "-o", tmp_path / "set", "--length", 50, "--sequences", 6)
    assert result.code == 0, result.err
    shown = dict(line.split("  ", 1) for line in result.out.splitlines())
    shown = {name: value.strip() for name, value in shown.items()}
    assert list(shown) == [
        "data", "written", "sequences", "tokens", "truncated", "dropped", "coverage", "tokens by id", "sha256",
    ]  # fmt: skip
    shards = read_shards(tmp_path / "set")
    rows = [row.ids for row in shards.rows()]
    assert [row.size for row in rows] == [50] * 6
    distinct = np.unique(np.concatenate(rows)).size
    assert shown["data"] == "text from text.txt"
    assert shown["tokens"] == "300 (50 to 50 a sequence)"
    assert shown["coverage"] == f"{distinct} of 400 token ids ({distinct / 400:.1%})"
    assert shown["sha256"] == shards.record["sha256"]


def test_json_force_and_seeds(cli: Cli, talker: Path, text: Path, tmp_path: Path) -> None:
    digests = []
    for seed in (1, 1, 2):
        result = cli(
            "calibrate", talker, "--data", text, "-o", tmp_path / "set", "--length", 20, "--seed", seed, "--json",
            "--force",
        )  # fmt: skip
        data = json.loads(result.out)
        assert (data["kind"], data["shards"], data["path"]) == ("tokens", 1, str(tmp_path / "set"))
        digests.append(data["record"]["sha256"])
    assert digests[0] == digests[1] != digests[2]
    result = cli("calibrate", talker, "--data", text, "-o", tmp_path / "set")
    assert result.code == 4
    the_sentence(result.err, "set exists already")


def test_chats_and_a_saved_set(cli: Cli, talker: Path, tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    lines = [{"messages": [{"role": "user", "content": f"Hello {n}"}]} for n in range(3)]
    chats.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    result = cli("calibrate", talker, "--data", chats, "-o", tmp_path / "chats")
    assert result.code == 0, result.err
    assert "note: 64 sequences were wanted and 3 are there" in result.err
    assert cli("calibrate", talker, "--data", chats, "-o", tmp_path / "quiet", "--quiet").err == ""
    result = cli("calibrate", talker, "--data", tmp_path / "chats", "-o", tmp_path / "again", "--json")
    record = json.loads(result.out)["record"]
    assert record["sha256"] == read_shards(tmp_path / "chats").record["sha256"]
    assert record["made_from"]["kind"] == "chat"


def test_the_default_is_the_shipped_text(cli: Cli, talker: Path, tmp_path: Path) -> None:
    result = cli("calibrate", talker, "-o", tmp_path / "set", "--sequences", 2, "--json")
    assert json.loads(result.out)["record"]["sources"][0]["name"] == "english.txt"


def test_images_and_observations(cli: Cli, talker: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for folder in ("images", "robot"):
        (tmp_path / folder).mkdir()
    for number in range(3):
        pixels = rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
        (tmp_path / "images" / f"{number}.txt").write_text("A picture.", encoding="utf-8")
        sample = {"observation.state": np.array([number, 1.0], np.float32), "observation.images.top": pixels}
        save_file(sample, tmp_path / "robot" / f"{number}.safetensors")
    result = cli("calibrate", talker, "--data", tmp_path / "images", "-o", tmp_path / "a", "--sequences", 2)
    assert result.code == 0, result.err
    assert "samples  2 of 3, seed 0" in result.out
    assert any(line.split()[:4] == ["image", "image", "2", "4x6x3"] for line in result.out.splitlines())
    result = cli("calibrate", talker, "--data", tmp_path / "robot", "-o", tmp_path / "b")
    assert result.code == 0, result.err
    assert "0 to 2, 1 dimensions never change" in result.out
    assert "note: observation.state: dimension 1 never changes" in result.err
    assert [sorted(sample) for sample in read_shards(tmp_path / "b").samples()] == [
        ["observation.images.top", "observation.state"]
    ] * 3


def test_errors_are_one_sentence(cli: Cli, talker: Path, llama: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    the_sentence(cli("calibrate", talker, "--data", tmp_path / "no.txt", "-o", out).err, "do not exist")
    the_sentence(cli("calibrate", llama, "--data", text, "-o", out).err, "has no tokenizer")
    the_sentence(cli("calibrate", talker, "--data", llama, "-o", out).err, "holds no observation")
    text.write_bytes("naïve".encode("latin-1"))
    result = cli("calibrate", talker, "--data", text, "-o", out)
    assert result.code == 3
    the_sentence(result.err, "text.txt is not UTF-8 text at byte 2", "iconv -f WINDOWS-1252")
    assert cli("calibrate", talker, "--sequences", 0, "-o", out).code == 2
    assert not out.exists()
