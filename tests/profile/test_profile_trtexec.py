from __future__ import annotations

import json
from pathlib import Path

import pytest
from profile_cases import GOLDENS, write_json

from edgewright.errors import ProfileError
from edgewright.profile.trtexec import parts, read_trtexec

PROFILE, LAYERS, TIMES = (GOLDENS / f"trtexec_{name}.json" for name in ("profile", "layers", "times"))


def test_means_medians_and_what_layers_are_made_of() -> None:
    profile = read_trtexec(PROFILE, LAYERS, TIMES)
    assert (profile.engine, profile.count, profile.latencies_ms) == ("tensorrt", 200, (0.30, 0.31, 0.29, 0.30))
    assert [(one.mean_ms, one.median_ms) for one in profile.averages] == [
        (0.01, 0.009), (0.03, 0.029), (0.12, 0.118), (0.05, 0.048), (0.04, 0.04),
    ]  # fmt: skip
    gemm = profile.averages[3]
    assert gemm.kind == "gemm"
    assert gemm.originals == ("model.layers.2.mlp.down_proj/Linear", "model.norm/RMSNorm", "lm_head/Linear")
    assert profile.averages[1].originals == (
        "model.layers.0.self_attn.q_proj/Linear",
        "model.layers.0.self_attn.k_proj/Linear",
    )
    assert read_trtexec(PROFILE).averages[3].originals == ("__myl_FcAdd_myl0_7",)


def test_names_of_fused_layers() -> None:
    assert parts("a/Conv + b/Relu") == ("a/Conv", "b/Relu")
    assert parts("{ForeignNode[a/x...b/y]}") == ("a/x...b/y",)
    assert parts("{ForeignNode[a/x...b/y]} + c/z") == ("a/x...b/y", "c/z")
    assert parts("c/z + {ForeignNode[a...b]} + {ForeignNode[d...e]}") == ("a...b", "d...e", "c/z")
    assert parts("{ForeignNode[a/x...b/y") == ("{ForeignNode[a/x...b/y",)
    assert parts("{ForeignNode[...") == ("{ForeignNode[...",)


def test_long_names_and_metadata_are_read_once(tmp_path: Path) -> None:
    """What could begin a node a hundred thousand times costs no more than its length."""
    name = "{ForeignNode[..." * 4000
    metadata = "[ONNX Layer: " * 200_000 + "[ONNX Layer: m/Linear | more]"
    profile = write_json(tmp_path / "p.json", [{"count": 1}, {"name": name, "averageMs": 1}])
    layers = write_json(tmp_path / "l.json", {"Layers": [{"Name": name, "Metadata": metadata}]})
    (layer,) = read_trtexec(profile, layers).averages
    assert layer.originals == ("m/Linear",)
    (layer,) = read_trtexec(profile).averages
    assert layer.originals == (name,)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "doesn't begin with a count"),
        ([{"name": "a", "averageMs": 1}], "doesn't begin with a count"),
        ([{"count": 0}, {"name": "a", "averageMs": 1}], "no layer that ran"),
        ([{"count": 5}], "no layer that ran"),
        ([{"count": 5}, {"name": "a"}], "averageMs None"),
        ([{"count": 5}, {"averageMs": 1}], "name None"),
        ([{"count": 5}, {"name": "a", "averageMs": -1}], "no time"),
        ([{"count": 5}, {"name": "a", "averageMs": 1e300}], "no time"),
        ({"Layers": []}, "no list of layers"),
    ],
)
def test_hostile_profiles(tmp_path: Path, data: object, words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        read_trtexec(write_json(tmp_path / "p.json", data))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "no list of Layers"),
        ({"Layers": 5}, "no list of Layers"),
        ({"Layers": ["a", "b"]}, "names alone"),
        ({"Layers": [{"LayerType": "x"}]}, "Name None"),
        ({"Layers": ["a", {}]}, "no list of layers"),
    ],
)
def test_hostile_layer_information(tmp_path: Path, data: object, words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        read_trtexec(PROFILE, write_json(tmp_path / "l.json", data))


def test_hostile_times_and_a_missing_layer(tmp_path: Path) -> None:
    for data, words in (([], "no run"), ([{"latencyMs": None}], "latencyMs None")):
        with pytest.raises(ProfileError, match=words):
            read_trtexec(PROFILE, None, write_json(tmp_path / "t.json", data))
    info = json.loads(LAYERS.read_text())
    short = write_json(tmp_path / "l.json", {"Layers": info["Layers"][:-1]})
    assert any("1 layers are not in l.json" in note for note in read_trtexec(PROFILE, short).notes)
    with pytest.raises(ProfileError, match="can't be read"):
        read_trtexec(tmp_path / "none.json")
