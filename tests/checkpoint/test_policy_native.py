"""Quantized policies in our own layout: what was changed in their config by hand is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import assert_one_sentence
from policy_folders import CONFIG, GOLDENS, put

from edgewright.build.quantized import quantize_checkpoint
from edgewright.checkpoint.policies.native import KEY
from edgewright.checkpoint.policy import PolicyOptions, open_policy
from edgewright.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return quantize_checkpoint(GOLDENS / "pi05/checkpoint", folder / "q", recipe="policy-int8").path


def test_a_whole_one_opens(whole: Path) -> None:
    made, original = open_policy(whole), open_policy(GOLDENS / "pi05/checkpoint")
    assert (made.spec, made.sizes) == (original.spec, original.sizes)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("sizes",), [1], "its sizes are no object"),
        (("sizes", "vision"), "abc", "its sizes are no object"),
        (("sizes", "vision", "heads"), 0, "the size heads is 0"),
        (("sizes", "text", "vocab"), 0, "the size vocab is 0"),
        (("sizes", "expert", "head_dim"), 0, "the size head_dim is 0"),
        (("sizes", "rope_base"), 0, "the size rope_base is 0"),
        (("sizes", "pixel_shuffle"), 0, "the size pixel_shuffle is 0"),
        (("sizes", "self_attention_every"), 0, "self_attention_every is 0 where 1 is needed"),
        (("spec", "image_tokens"), 7, "image_tokens is 7 where 4"),
        (("spec", "image_size"), [56, 56], "image_size is (56, 56)"),
        (("spec", "model_action_dim"), 77, "model_action_dim is 77 where 32"),
        (("spec", "vocab"), 3, "vocab is 3"),
        (("spec", "tokenizer"), "x.json", "tokenizer is x.json"),
        (("spec", "state_dim"), 3, "statistics of state are not the quantile ones of 3 numbers"),
        (("spec", "action_norm"), "min-max", None),
        (("spec", "max_tokens"), 10**7, "max_tokens must be at most 65536"),
        (("notes",), "abc", "notes are no list"),
        (("notes",), None, "notes are no list"),
    ],
)
def test_values_that_do_not_fit(
    path: tuple[str, ...], value: Any, words: str | None, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "q"
    shutil.copytree(whole, folder)
    put(folder, CONFIG, KEY, *path, value=value)
    if words is None:  # the statistics have those too
        assert open_policy(folder).spec.action_norm == value
        return
    with pytest.raises(CheckpointError) as caught:
        open_policy(folder)
    assert_one_sentence(caught.value, words, "quantize the original again")


def test_statistics_that_were_cut(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "q"
    shutil.copytree(whole, folder)
    stats = json.loads((folder / "norm_stats.json").read_text())
    for key in stats["actions"]:
        stats["actions"][key].pop()
    (folder / "norm_stats.json").write_text(json.dumps(stats))
    with pytest.raises(CheckpointError, match=r"statistics of actions are not the quantile ones of 7 numbers"):
        open_policy(folder)


def test_options_are_refused_by_their_flags(whole: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_policy(whole, PolicyOptions(max_tokens=9, delta_mask=(True,)))
    assert_one_sentence(caught.value, "option max_tokens (--max-prompt), the option delta_mask (--delta-actions)")
