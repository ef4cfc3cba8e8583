"""What a build of a policy starts from: the record of its files, its tokenizer, the recipe that nobody asked for."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgewright.build import key
from edgewright.build.key import policy_record
from edgewright.build.pipeline import deploy
from edgewright.build.quantized import quantize_checkpoint
from edgewright.build.sources import PolicyRequest, Request, open_source
from edgewright.checkpoint.policy import PolicyCheckpoint, PolicyOptions, open_policy
from edgewright.errors import ConfigError, TokenizerError, UsageError
from edgewright.files import sha256_of
from edgewright.verify.policy_against import verify_policy_against
from policy_builds import request_for, source_of
from policy_goldens import TOKENIZER

NORMALIZER = "policy_preprocessor_step_3_normalizer_processor.safetensors"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def elsewhere(tmp_path: Path, name: str) -> Path:
    """Statistics of both groups in another folder, under some name."""
    path = tmp_path / "other" / name
    path.parent.mkdir(exist_ok=True)
    shutil.copy(source_of("pi05") / NORMALIZER, path)
    return path


def test_a_file_from_elsewhere_does_not_hide_one_of_the_folder(tmp_path: Path) -> None:
    """Statistics under the name of a file that the folder has, in a bundle that then accepts its own checkpoint."""
    path = elsewhere(tmp_path, "model.safetensors")
    asked = PolicyRequest(PolicyOptions(statistics=path))
    built = deploy(source_of("pi05"), tmp_path / "b", recipe="float32", policy=asked, verify=False)
    files = built.manifest.source["files"]
    assert files["statistics:model.safetensors"]["sha256"] == sha256_of(path)
    assert files["model.safetensors"]["sha256"] == sha256_of(source_of("pi05") / "model.safetensors")
    report = verify_policy_against(tmp_path / "b", source_of("pi05"), statistics=path, threads=1)
    assert report.passed


def test_names_of_what_options_give(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(source_of("pi0"), folder)
    given = {"max_tokens": 32, "state_dim": 14}
    outside = policy_record(open_policy(folder, PolicyOptions(tokenizer=TOKENIZER, **given)))
    assert f"tokenizer:{TOKENIZER.name}" in outside["files"]
    shutil.copy(TOKENIZER, folder / "mine.model")
    inside = policy_record(open_policy(folder, PolicyOptions(tokenizer=folder / "assets/../mine.model", **given)))
    assert "mine.model" in inside["files"]
    assert not any(":" in name for name in inside["files"])


def test_links_of_a_download_cache_have_the_names_of_the_folder(tmp_path: Path) -> None:
    home = tmp_path / "models--x"
    folder = home / "snapshots" / "rev"
    folder.mkdir(parents=True)
    (home / "blobs").mkdir()
    for number, path in enumerate(p for p in source_of("pi05").rglob("*") if p.is_file()):
        shutil.copy(path, home / "blobs" / str(number))
        target = folder / path.relative_to(source_of("pi05"))
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(home / "blobs" / str(number))
    found, wanted = policy_record(open_policy(folder)), policy_record(open_policy(source_of("pi05")))
    assert found["files"] == wanted["files"]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    checkpoint = open_policy(source_of("pi05"))
    places = [tmp_path / name / "x.json" for name in "ab"]
    for place in places:
        place.parent.mkdir()
        place.write_text("{}")
    twice: PolicyCheckpoint = dataclasses.replace(checkpoint, files=(*checkpoint.files, *places))
    with pytest.raises(ConfigError, match=r"would both be recorded as other:x\.json"):
        policy_record(twice)


def broken(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [None, "{}", json.dumps({"version": "1.0", "added_tokens": [], "model": {}}), "\x00"])
def test_a_tokenizer_that_is_none_is_found_before_any_work(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: Any) -> Any:
        raise AssertionError("hashed before the tokenizer was looked at")

    monkeypatch.setattr(key.DigestMemory, "digest", never)
    path = None if text is None else broken(tmp_path, text)
    asked = dataclasses.replace(request_for("pi0").options, tokenizer=path)
    words = "no tokenizer" if text is None else "tokenizer"
    with pytest.raises(TokenizerError, match=words):
        deploy(source_of("pi0"), tmp_path / "b", recipe="float32", policy=PolicyRequest(asked))
    with pytest.raises(TokenizerError, match=words):
        quantize_checkpoint(source_of("pi0"), tmp_path / "q", recipe="policy-int8", policy=asked)


def test_the_default_recipe_is_that_of_the_kind() -> None:
    assert open_source(source_of("pi05"), Request()).recipe.name == "policy-int8"
    text = next((source_of("pi05").parents[2] / "text").glob("*/config.json")).parent
    assert open_source(text, Request()).recipe.name == "int4"


def test_memory_for_a_verification_that_is_not_done_is_refused(tmp_path: Path) -> None:
    asked = PolicyRequest(memory_bytes=10**9)
    with pytest.raises(UsageError, match="--memory is for the verification, which --no-verify leaves out"):
        deploy(source_of("pi05"), tmp_path / "b", policy=asked, verify=False)


def test_options_of_policies_on_a_language_model_are_named_by_their_flags() -> None:
    text = next((source_of("pi05").parents[2] / "text").glob("*/config.json")).parent
    options = PolicyOptions(max_tokens=3, delta_mask=(True,), sizes={"text.heads": 2})
    with pytest.raises(UsageError, match=r"\(--max-prompt, --delta-actions, --size NAME=N\)"):
        open_source(text, Request("int8", policy=PolicyRequest(options)))
