"""Trees of YAML and JSON that know their lines; and YAML that is written and read back."""

from __future__ import annotations

import builtins
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.errors import MissingExtraError, RecipeError, UsageError
from edgewright.nodes import Node, read_json, read_yaml, shown
from edgewright.yaml_text import yaml_text

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
)
#: YAML's own characters only: no lone surrogates and nothing that is not printable in a key's text.
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
WRITABLE = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS, st.just("no")
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
)


def lines_of(node: Node) -> Any:
    """A tree with each scalar replaced by its line."""
    if node.is_mapping:
        return {key: lines_of(value) for key, value in node.entries()}
    return [lines_of(item) for item in node.items("")] if isinstance(node.content, tuple) else node.line


@given(TREES)
def test_json_is_read_as_the_standard_library_reads_it(tree: Any) -> None:
    for indent in (None, 2):
        assert read_json(json.dumps(tree, indent=indent), "a.json").value == tree


def test_json_knows_its_lines() -> None:
    text = '{\n "a": [1,\n  2, {"b":\n null}],\n\n "c": "x\\n"}'
    assert lines_of(read_json(text, "a.json")) == {"a": [2, 3, {"b": 4}], "c": 6}
    with pytest.raises(UsageError, match=r"^a\.json:6: unknown key 'c'; known are a\."):
        read_json(text, "a.json").mapping(["a"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.json:1: not valid JSON (a value is missing)"),
        ("{\n", "a.json:2: not valid JSON (a key in quotes is missing)"),
        ('{"a" 1}', "a.json:1: not valid JSON (a colon is missing after 'a')"),
        ('{"a": 1\n "b": 2}', "a.json:2: not valid JSON (a comma or '}' is missing)"),
        ("[1, 2", "a.json:1: not valid JSON (a comma or ']' is missing)"),
        ("[1, ]", "a.json:1: not valid JSON (expecting value)"),
        ("{a: 1}", "a.json:1: not valid JSON (a key in quotes is missing)"),
        ("1 2", "a.json:1: not valid JSON (there is more after its end)"),
        ("[\nNaN]", "a.json:2: not valid JSON (nan is no json number)"),
        ('"a\nb"', "a.json:1: not valid JSON (invalid control character at)"),
        ("[" * 60 + "]" * 60, "a.json:1: not valid JSON (more than 50 levels)"),
        ("1" * 5000, "a.json:1: not valid JSON ("),
    ],
)
def test_json_that_is_none(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_json(text, "a.json")
    assert message in str(caught.value)


def test_keys_that_stand_twice_and_values_that_are_wrong_name_their_line() -> None:
    tree = read_json('{"a": 1,\n"b": "x",\n"a": true}', "a.json", RecipeError)
    with pytest.raises(RecipeError, match=r"^a\.json:3: the key 'a' stands twice\."):
        tree.entries()
    [(_, first)], [(_, text)], [(_, truth)] = (single.entries() for single in tree.singles())
    assert (first.whole("it", 1), first.number("it", 0, 2), text.text("it"), truth.truth("it")) == (1, 1.0, "x", True)
    for wrong in (
        lambda: first.whole("it", 2),
        lambda: first.text("it"),
        lambda: truth.whole("it", 0),
        lambda: text.number("it", 0, 1),
        lambda: text.one_of(["y"], "it"),
        lambda: text.items("a list is needed"),
        lambda: text.truth("it"),
        lambda: text.mapping(["k"]),
    ):
        with pytest.raises(RecipeError, match=r"^a\.json:[123]: "):
            wrong()


def test_yaml_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError("No module named 'yaml'", name="yaml")
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match="write it as JSON"):
        read_yaml("a: 1", "a.yaml")
    assert read_json('{"a": 1}', "a.json").value == {"a": 1}


def test_shown_is_short_and_in_one_line() -> None:
    assert shown("a\nb") == "'a\\nb'"
    assert len(shown("x" * 1000)) == 80
    assert shown(10**5000) == "a number of thousands of digits"


@given(st.dictionaries(TEXTS, WRITABLE, max_size=4))
def test_yaml_reads_back(data: dict[str, Any]) -> None:
    back = read_yaml(yaml_text(data), "a.yaml").value
    assert (back or {}) == data
    assert json.dumps(back or {}) == json.dumps(data)  # true is not 1, and 1.0 is not 1


def test_yaml_is_laid_out_for_people() -> None:
    data = {"version": 1, "models": {"a": {"x": 1e-05}, "b": {}}, "list": [{"a": "no"}, {"b": [1, 2]}], "t": "a b"}
    assert yaml_text(data) == (
        'version: 1\nmodels:\n  a: {x: 1.0e-05}\n  b: {}\nlist:\n  - {a: "no"}\n  - {b: [1, 2]}\nt: "a b"\n'
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, object()])
def test_what_yaml_has_no_place_for(value: Any) -> None:
    with pytest.raises(ValueError, match=r"place in YAML|JSON compliant"):
        yaml_text({"a": value})
