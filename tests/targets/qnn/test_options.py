"""What is asked of the QNN back end: chips, sizes and words that can't be are refused before any work."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import golden, lowered, tokenizer_json
from edgewright.errors import CalibrationDataError, MissingExtraError, UnsupportedFormatError, UsageError
from edgewright.runtime.vocabulary import sidecar_bytes
from edgewright.targets import find_target, goal_key, target_names
from edgewright.targets.platform import find_platform
from edgewright.targets.qnn import BACKEND
from edgewright.targets.qnn.backend import _checked
from edgewright.targets.qnn.calibrate import calibration_ids
from edgewright.targets.qnn.options import OPTIONS, asked, sizes

GEN3 = find_platform("snapdragon-8-gen-3")


def test_the_target_is_known_with_its_options() -> None:
    assert "qnn" in target_names()
    assert find_target("qnn") is BACKEND
    assert (BACKEND.dialect, BACKEND.options) == ("qnn", OPTIONS)


@pytest.mark.parametrize(
    ("platform", "number", "arch"),
    [
        ("snapdragon-8-gen-2", 43, "v73"),
        ("snapdragon-8-gen-3", 57, "v75"),
        ("snapdragon-8-elite", 69, "v79"),
        ("snapdragon-x-elite", 60, "v73"),
        ("sa8255p", 52, "v73"),
        ("sa8775p", 52, "v73"),
        ("sa8797p", 72, "v81"),
    ],
)
def test_platforms_stand_for_chips(platform: str, number: int, arch: str) -> None:
    soc = asked(find_platform(platform), {}).soc
    assert (soc.soc_model, soc.dsp_arch) == (number, arch)


def test_a_chip_of_ones_own_is_numbered() -> None:
    own = replace(GEN3, name="my-board")
    with pytest.raises(UsageError, match="the target's options soc-model and dsp-arch"):
        asked(own, {})
    soc = asked(own, {"soc-model": "88", "dsp-arch": "v79"}).soc
    assert (soc.name, soc.soc_model, soc.dsp_arch) == ("my-board", 88, "v79")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ar": "1"}, "The option ar is a whole number from 2 to 2048, not '1'"),
        ({"ar": "many"}, "not 'many'"),
        ({"context": "-4"}, "The option context is a whole number"),
        ({"kv": "int8"}, "The option kv is one of uint16, uint8, not 'int8'"),
        ({"weights": "fp4"}, "The option weights is one of recipe, int8, int4"),
        ({"share": "yes"}, "The option share is one of on, off"),
        ({"dsp-arch": "75"}, "The DSP architecture '75' is none"),
        ({"ar": "16", "context": "16"}, "The option ar is 16 and the context holds 16 tokens"),
        ({"genie-config": "no-such/config.json"}, "config.json can't be read"),
        ({"dsp-arch": "v68"}, "16-bit activations need v73 or newer"),
    ],
)
def test_words_that_can_not_be_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        BACKEND.require(GEN3, options)


def test_files_are_read_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(CalibrationDataError, match="can't be read as UTF-8 text"):
        BACKEND.require(GEN3, {"calibration": str(tmp_path / "none.txt")})
    (tmp_path / "config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match="holds no object"):
        BACKEND.require(GEN3, {"genie-config": str(tmp_path / "config.json")})


def test_a_chip_is_needed_and_one_with_an_htp() -> None:
    with pytest.raises(UsageError, match="name one with --for, such as snapdragon-8-gen-3"):
        BACKEND.require(None, {})
    with pytest.raises(UsageError, match="The platform jetson-orin-nx-16gb has no HTP"):
        BACKEND.require(find_platform("jetson-orin-nx-16gb"), {})


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'edgewright\[qnn\]'"):
        BACKEND.require(GEN3, {})


def test_sizes_follow_from_the_model_where_none_are_asked_for() -> None:
    assert sizes(asked(GEN3, {}), 8192) == (128, 4096)
    assert sizes(asked(GEN3, {}), 100) == (50, 100)
    assert sizes(asked(GEN3, {"ar": "32", "context": "512"}), 8192) == (32, 512)
    with pytest.raises(UsageError, match="The option context is 512 and the model was built for 256 tokens"):
        sizes(asked(GEN3, {"context": "512"}), 256)
    with pytest.raises(UsageError, match="The option ar is 128 and the context holds 128 tokens"):
        sizes(asked(GEN3, {"ar": "128", "context": "128"}), 256)


def test_what_files_hold_is_part_of_the_goal(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    keys = []
    for words in ("one", "other"):
        text.write_text(words, encoding="utf-8")
        keys.append(goal_key("qnn", GEN3, {"calibration": str(text)}))
    assert keys[0] != keys[1]
    assert keys[0]["tool"]["soc"]["soc_model"] == 57


@pytest.mark.parametrize(
    ("case", "words"), [("qwen3", None), ("mamba2", "recurrent states|with a key/value cache")], ids=["kv", "recurrent"]
)
def test_stages_without_a_cache_are_refused(case: str, words: str | None) -> None:
    contract = lowered(golden(case).checkpoint, "portable").contract
    if words is None:
        assert _checked(contract) is contract
        return
    with pytest.raises(UnsupportedFormatError, match=words):
        _checked(contract)


def test_calibration_takes_a_text_or_seeded_tokens(tmp_path: Path) -> None:
    ids, said = calibration_ids(tmp_path, None, 10, 97)
    again, _ = calibration_ids(tmp_path, None, 10, 97)
    assert said == "seeded random tokens, since there is no tokenizer"
    assert ids.tolist() == again.tolist()
    text = tmp_path / "text.txt"
    text.write_text("ab", encoding="utf-8")
    with pytest.raises(CalibrationDataError, match="has no tokenizer"):
        calibration_ids(tmp_path, text, 10, 97)
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    ids, said = calibration_ids(tmp_path, text, 5, 97)
    assert (ids.tolist(), said) == ([65, 66, 65, 66, 65], "text.txt")
    assert calibration_ids(tmp_path, None, 600, 97)[1] == "the sample text"
    (tmp_path / "vocabulary.safetensors").write_bytes(sidecar_bytes(np.asarray([3, 66, 90])))
    assert calibration_ids(tmp_path, text, 2, 3)[0].tolist() == [1, 1]
    text.write_bytes(b"\xff\xfe")
    with pytest.raises(CalibrationDataError, match="can't be read as UTF-8 text"):
        calibration_ids(tmp_path, text, 5, 97)
    text.write_text("", encoding="utf-8")
    with pytest.raises(CalibrationDataError, match="holds no tokens of this model"):
        calibration_ids(tmp_path, text, 5, 97)
    with pytest.raises(CalibrationDataError, match="can't be read as UTF-8 text"):
        calibration_ids(tmp_path, tmp_path / "none.txt", 5, 97)
