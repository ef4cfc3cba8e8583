"""JSON is read as strictly as the library reads it, and every value's line is known."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from edgewright.errors import GenieError
from edgewright.genie.document import parse, parse_file, spelled

TEXT = """{
  "a": [1, {"b": 2.5e1}],
  "c": "d\\u00e9\\ud83d\\ude00", "a": [true, null, []],
  "e": {}
}
"""


def test_values_lines_and_keys_written_twice() -> None:
    document = parse(TEXT)
    assert document.value == json.loads(TEXT)
    assert document.line_of(("c",)) == 3
    assert document.line_of(("e", "not there")) == 4
    assert document.line_of(()) == 1
    assert document.repeated == [("a",)]


def test_random_values_are_read_as_python_reads_them() -> None:
    rng = random.Random(1)

    def value(depth: int) -> object:
        kind = rng.randrange(8 if depth < 5 else 6)
        scalar = [None, rng.random() < 0.5, rng.randrange(-(10**6), 10**6), rng.gauss(0, 1e9), '\u00e9"\\\n', ""]
        if kind < 6:
            return scalar[kind]
        inner = [value(depth + 1) for _ in range(rng.randrange(4))]
        return inner if kind == 6 else {f"k{index}": one for index, one in enumerate(inner)}

    for _ in range(200):
        data = [value(0)]
        for indent in (None, 2):
            assert parse(json.dumps(data, indent=indent)).value == data


def test_numbers_beyond_64_bits_are_floats() -> None:
    found = parse("[18446744073709551615, 18446744073709551616, -9223372036854775809, -0, 1e2, 1.0]").value
    assert found == [2**64 - 1, 2.0**64, -(2.0**63), 0, 100.0, 1.0]
    assert [type(one) for one in found] == [int, float, float, int, float, float]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: a value is missing"),
        ("{\n\n", "line 3: a key in quotation marks"),
        ('{"a" 1}', "a colon is missing after 'a'"),
        ('{"a": 1,}', "a key in quotation marks"),
        ("[1 2]", "a comma or ] is missing"),
        ("[1,]", "a value is missing"),
        ("nul", "'n' begins no value"),
        ("[NaN]", "'N' begins no value"),
        ("-Infinity", "a number is wrong"),
        ("[01]", "a comma or ]"),
        ("1e999", "too large"),
        ("9" * 5000, "too large"),
        ('"a', "a string is wrong"),
        ('"\t"', "a string is wrong"),
        ('"\\ud800"', "half a surrogate"),
        ("{} x", "something follows"),
        ("\ufeff\ufeff{}", "begins no value"),
        ("[" * 100_000, "nested more than"),
    ],
)
def test_what_is_not_json(text: str, said: str) -> None:
    with pytest.raises(GenieError) as error:
        parse(text, "x.json")
    assert str(error.value).startswith("x.json, line ")
    assert said in str(error.value)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes("\ufeff{}".encode())
    assert parse_file(path).value == {}
    path.write_bytes(b'{\n"\xff": 1}')
    with pytest.raises(GenieError, match=r"x\.json, line 2: a byte is not UTF-8"):
        parse_file(path)
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(GenieError, match="more than 1048576 bytes"):
        parse_file(path)
    with pytest.raises(GenieError, match="more than 1048576 bytes"):
        parse_file(Path("/dev/zero"))
    with pytest.raises(GenieError, match="can't be read"):
        parse_file(tmp_path)


def test_lines_are_kept_where_messages_need_them() -> None:
    """Thousands of values deep down don't each keep the whole way to them."""
    document = parse('{"a":\n' * 100 + "[" + "0,\n" * 5000 + "0]" + "}" * 100)
    assert len(document.lines) < 100
    assert document.line_of(("a",) * 3) == 3
    assert document.line_of((*("a",) * 100, 4000)) == 24


def test_places_as_people_write_them() -> None:
    assert spelled(("dialog", "engine", 1, "model")) == "dialog.engine[1].model"
    assert spelled(()) == "the top level"
    assert spelled(("a\x1b[2J\n\x9b", "é" * 200)) == f"a\\x1b[2J\\n\\x9b.{'é' * 80}..."
