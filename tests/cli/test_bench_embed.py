"""`edgewright bench embed`: raw files that give the tokens of the prompt, the arguments it prints, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgewright.cli import main
from edgewright.runtime.encoding import EmbeddingFile, Requantizer
from edgewright.runtime.llm import LLM
from edgewright.runtime.rawtable import LookUp, RawRows, RawTable

from .conftest import Cli
from .tiny import the_sentence

TEXT = "The weather today"


@pytest.fixture(scope="module")
def outside(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle with its table outside the graph; not to be changed."""
    folder = tmp_path_factory.mktemp("outside") / "bundle"
    arguments = [
        "deploy",
        talker,
        "-o",
        folder,
        "--recipe",
        "float32",
        "--embeddings",
        "outside",
        "--no-verify",
        "--quiet",
    ]
    assert main([str(argument) for argument in arguments]) == 0
    return folder


def printed(out: str) -> dict[str, EmbeddingFile]:
    pairs = (line.split(None, 1) for line in out.splitlines())
    return {what: EmbeddingFile.parse(argument) for what, argument in pairs}


def test_a_prompt_and_its_table(outside: Path, cli: Cli, tmp_path: Path) -> None:
    llm = LLM.load(outside, threads=1)
    wanted = llm.generate(TEXT, max_tokens=12, ignore_eos=True).all_tokens()
    result = cli("bench", "embed", outside, "--prompt", TEXT, "-o", tmp_path / "in", "--table", tmp_path / "table")
    assert (result.code, result.err) == (0, "")
    assert result.out == f"input  {tmp_path / 'in'}\ntable  {tmp_path / 'table'}\n"
    ids = llm.tokenizer.encode(TEXT)
    assert np.array_equal(np.fromfile(tmp_path / "in", "<f4").reshape(len(ids), -1), llm.embed(ids))
    files = printed(result.out)
    width = llm.embedding_width
    assert width is not None
    rows = RawRows(files["input"].path, files["input"].encoding, width)
    table = RawTable(files["table"].path, files["table"].encoding, width)
    assert table.vocab == 400
    assert llm.generate(embeddings=rows, table=table, max_tokens=12, ignore_eos=True).all_tokens() == wanted


def test_encodings_that_span_the_table(outside: Path, cli: Cli, tmp_path: Path) -> None:
    llm = LLM.load(outside, threads=1)
    whole = llm.embed(range(400))
    places = ["-o", f"{tmp_path / 'in'},uint16", "--table", f"{tmp_path / 't'},uint8"]
    result = cli("bench", "embed", outside, "--prompt", TEXT, *places)
    assert result.code == 0
    files = printed(result.out)
    encodings = {what: file.encoding for what, file in files.items()}
    assert [encodings[what].dtype for what in ("input", "table")] == ["uint16", "uint8"]
    span = float(whole.max()) - float(whole.min())
    assert encodings["table"].scale == pytest.approx(span / 255)
    assert encodings["input"].scale == pytest.approx(span / 65535)
    rows = RawRows(files["input"].path, encodings["input"], whole.shape[1])
    wanted = llm.embed(llm.tokenizer.encode(TEXT))
    assert np.abs(rows[:] - wanted).max() <= 0.51 * encodings["input"].scale
    look_up = LookUp(
        RawTable(files["table"].path, encodings["table"], whole.shape[1]),
        Requantizer(encodings["table"], encodings["input"]),
    )
    got = look_up.rows(np.arange(400))
    assert np.abs(got - whole).max() <= 0.51 * (encodings["table"].scale + encodings["input"].scale)
    # Rounding to the table's codes moves an end by at most half of its steps.
    assert look_up.saturated <= 2


def test_an_encoding_that_is_given(outside: Path, cli: Cli, tmp_path: Path) -> None:
    place = f"{tmp_path / 'in'},int8,0.001,0"
    result = cli("bench", "embed", outside, "--ids", "5,6,300", "-o", place, "--json")
    found = json.loads(result.out)["input"]
    values = LLM.load(outside, threads=1).embed([5, 6, 300]).astype(float)
    codes = np.clip(np.rint(values / 0.001), -128, 127)
    assert np.array_equal(np.fromfile(tmp_path / "in", np.int8).reshape(3, -1), codes)
    cut = int((np.abs(np.rint(values / 0.001) + 0.5) > 128).sum())
    assert cut > 0
    assert found == {
        "argument": place,
        "path": str(tmp_path / "in"),
        "dtype": "int8",
        "scale": 0.001,
        "offset": 0,
        "rows": 3,
        "hidden": values.shape[1],
        "bytes": values.size,
        "saturated": cut,
    }
    assert f"{cut:,} values of {tmp_path / 'in'} were cut" in result.err


def test_a_table_alone_and_again(outside: Path, cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "table"
    place.write_bytes(b"mine")
    result = cli("bench", "embed", outside, "--table", place)
    assert result.code == 4
    the_sentence(result.err, "exists already", "--overwrite")
    assert place.read_bytes() == b"mine"
    result = cli("bench", "embed", outside, "--table", f"{place},int16", "--overwrite")
    assert (result.code, list(printed(result.out))) == (0, ["table"])
    assert place.stat().st_size == 400 * 40 * 2
    assert list(tmp_path.iterdir()) == [place]


def test_command_lines_that_are_refused(outside: Path, talking_bundle: Path, cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "in"
    for arguments, code, words in (
        ([], 2, "Give --prompt or --ids together with -o"),
        (["--prompt", TEXT], 2, "together with -o"),
        (["-o", place], 2, "together with -o"),
        (["--prompt", TEXT, "--ids", "1", "-o", place], 2, "not allowed with"),
        (["--prompt", TEXT, "-o", place, "--table", f"{tmp_path}/./in,int8"], 2, "can't both be written"),
        (["--prompt", TEXT, "-o", f"{place},uint12"], 2, "Invalid datatype 'uint12'"),
        (["--prompt", TEXT, "-o", f"{place},uint8,0.1"], 2, "3 fields"),
        (["--prompt", TEXT, "-o", f"{place},uint8,0,1"], 2, "scale 0.0"),
        (["--prompt", TEXT, "-o", tmp_path / "none" / "in"], 4, "a folder that exists"),
        (["--prompt", TEXT, "-o", tmp_path], 4, "name a file"),
        (["--ids", "1,400", "-o", place], 3, "beyond the embedding table of 400 rows"),
        (["--prompt", "", "-o", place], 2, "prompt is empty"),
    ):
        result = cli("bench", "embed", outside, *arguments)
        assert result.code == code, (arguments, result.err)
        the_sentence(result.err, words)
    result = cli("bench", "embed", talking_bundle, "--prompt", TEXT, "-o", place)
    assert result.code == 3
    the_sentence(result.err, "deploy with --embeddings outside")
    assert not list(tmp_path.iterdir())
