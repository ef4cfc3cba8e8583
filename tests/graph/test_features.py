"""The registry of features: what may be asked for, what fits a policy and what goes together."""

from __future__ import annotations

import pytest

from edgewright.errors import UsageError
from edgewright.graph.features import FEATURES, parse_features, resolve_features, shown


def test_parse() -> None:
    asked = parse_features(["time-table=off", "loop=step", "kv-transposed=ON", "view-batching=false"])
    assert asked == {"time-table": False, "loop": "step", "kv-transposed": True, "view-batching": False}


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["time_table=on"], "'time_table' is unknown; known are time-table=on|off, "),
        (["time-table"], "no value: write it as NAME=VALUE, time-table=on|off"),
        (["time-table="], "can't be ''; the choices are time-table=on|off"),
        (["time-table=graph"], "the choices are time-table=on|off"),
        (["loop=on"], r"the choices are loop=step\|graph\|unrolled"),
        (["kv-only=on", "kv-only=off"], "kv-only is given twice"),
        (["nonsense"], "'nonsense' is unknown"),
    ],
)
def test_what_cant_be_parsed(items: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_features(items)


@pytest.mark.parametrize("kind", ["pi05", "pi0", "smolvla"])
def test_every_feature_has_a_value(kind: str) -> None:
    found = resolve_features({}, kind)
    assert list(found) == list(FEATURES)
    assert found["cross-once"] is (kind == "smolvla")
    assert all(found[name] in feature.values for name, feature in FEATURES.items())
    assert resolve_features(found, kind) == found


@pytest.mark.parametrize("loop", ["graph", "unrolled"])
def test_the_loop_needs_the_table(loop: str) -> None:
    assert resolve_features({"loop": loop}, "pi05")["time-table"] is True
    with pytest.raises(UsageError, match=f"loop={loop} and time-table=off don't go together: .* or one of loop=step"):
        resolve_features({"loop": loop, "time-table": False}, "pi05")


@pytest.mark.parametrize("value", [1, None, "on", 0])
def test_a_switch_is_a_bool(value: object) -> None:
    with pytest.raises(UsageError, match="kv-only can't be"):
        resolve_features({"kv-only": value}, "pi0")  # type: ignore[dict-item]


def test_a_feature_of_another_policy() -> None:
    with pytest.raises(UsageError, match="cross-once is for smolvla and can't be on for pi05"):
        resolve_features({"cross-once": True}, "pi05")
    assert resolve_features({"cross-once": False}, "pi05")["cross-once"] is False


def test_requirements_name_features_and_their_values() -> None:
    for feature in FEATURES.values():
        assert feature.default in feature.values
        assert feature.changes
        assert shown(feature).startswith(f"{feature.name}=")
        for value, others in feature.requires.items():
            assert value in feature.values
            assert all(needed in FEATURES[other].values for other, needed in others.items())
