"""LLM.load and what hangs on a bundle: sidecars, EOS ids, chats, and one sentence for everything that is missing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import BOS, EOS, MakeBundle, write_source
from edgewright import LLM
from edgewright.build.pipeline import _seal, deploy, export
from edgewright.bundle import read_manifest
from edgewright.errors import (
    BundleError,
    BundleTamperedError,
    ContextOverflowError,
    EdgewrightError,
    TemplateError,
    TokenizerError,
)


def change_sidecar(folder: Path, name: str, content: str | None) -> Path:
    """Replace or remove a sidecar and seal the bundle anew."""
    path = folder / "sidecars" / name
    if content is None:
        path.unlink()
    else:
        path.write_text(content, encoding="utf-8")
    _seal(folder, dataclasses.replace(read_manifest(folder), files={}))
    return folder


@pytest.mark.parametrize("check", [True, False])
def test_a_bundle_loads_and_knows_itself(check: bool, shared_bundle: MakeBundle) -> None:
    llm = LLM.load(str(shared_bundle("int4")), threads=1, check=check)
    assert llm.max_context == 256
    assert llm.eos_ids == (EOS, BOS)
    assert llm.has_chat_template
    assert llm.tokenizer.encode("Hello") == [40, 69, 76, 76, 79]
    assert llm.manifest.model["model_type"] == "qwen3"
    session = llm.session(batch=2)
    assert session.append([[1, 2], [3, 4]]).shape == (2, 1, 97)


def test_text_ids_and_messages_are_prompts(shared_bundle: MakeBundle) -> None:
    llm = LLM.load(shared_bundle("float32"), threads=1)
    text = llm.generate("Hello", max_tokens=8)
    assert text.prompt_ids == [40, 69, 76, 76, 79]
    assert llm.generate([40, 69, 76, 76, 79], max_tokens=8).all_tokens() == text.all_tokens()
    messages = [{"role": "user", "content": "Hi"}]
    chat = llm.generate(messages, max_tokens=3)
    assert llm.tokenizer.decode(chat.prompt_ids) == "[user]Hi[a]"
    assert llm.encode_chat(messages, add_generation_prompt=False) == llm.tokenizer.encode("[user]Hi")


def test_a_text_of_special_tokens_is_cut_like_the_tokenizer_does(shared_bundle: MakeBundle) -> None:
    llm = LLM.load(shared_bundle("float32"), threads=1)
    assert llm.generate("<bos>A", max_tokens=1).prompt_ids == [BOS, 33]


def test_the_prompt_must_fit(shared_bundle: MakeBundle) -> None:
    llm = LLM.load(shared_bundle("int4"), threads=1)
    with pytest.raises(ContextOverflowError, match=r"300 tokens does not fit.*--max-context"):
        llm.generate("a" * 300)


def test_things_that_are_no_bundle(tmp_path: Path, source: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path, source, source / "config.json"):
        with pytest.raises(BundleError) as error:
            LLM.load(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["stages/llm/engine.onnx", "stages/llm/weights.bin"])
@pytest.mark.parametrize("check", [True, False])
def test_missing_files(name: str, check: bool, own_bundle: MakeBundle) -> None:
    folder = own_bundle("int4")
    (folder / name).unlink()
    with pytest.raises(BundleError) as error:
        LLM.load(folder, check=check)
    assert check is (f"{name} is missing" in str(error.value))


def test_a_changed_file_explains_a_failed_load(own_bundle: MakeBundle) -> None:
    folder = own_bundle("int4")
    (folder / "stages/llm/engine.onnx").write_bytes(b"rubbish")
    with pytest.raises(BundleTamperedError, match=r"engine\.onnx has 7 bytes instead of"):
        LLM.load(folder)
    with pytest.raises(BundleError, match="ONNX Runtime"):
        LLM.load(folder, check=False)


def test_without_a_tokenizer_ids_still_work(own_bundle: MakeBundle) -> None:
    folder = change_sidecar(own_bundle("int4"), "tokenizer.json", None)
    llm = LLM.load(folder, threads=1)
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        llm.generate("text")
    with pytest.raises(TokenizerError):
        llm.generate([1, 2], stop=["x"])
    generation = llm.generate([1, 2, 3], max_tokens=5, ignore_eos=True)
    assert len(generation.all_tokens()) == 5
    assert llm.eos_ids == (EOS, BOS)


def test_without_a_template_chats_are_refused(own_bundle: MakeBundle) -> None:
    llm = LLM.load(change_sidecar(own_bundle("int4"), "chat_template.jinja", None), threads=1)
    assert not llm.has_chat_template
    with pytest.raises(TemplateError, match="no chat template"):
        llm.generate([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("name", "content", "use"),
    [
        ("tokenizer.json", "{", lambda llm: llm.tokenizer),
        ("tokenizer.json", '{"model": 3}', lambda llm: llm.tokenizer),
        ("tokenizer_config.json", "[", lambda llm: llm.tokenizer),
        ("tokenizer_config.json", "[]", lambda llm: llm.tokenizer),
        ("generation_config.json", "nope", lambda llm: llm.eos_ids),
        ("generation_config.json", "3", lambda llm: llm.eos_ids),
        ("generation_config.json", '{"eos_token_id": "x"}', lambda llm: llm.eos_ids),
        ("chat_template.jinja", "{% for %}", lambda llm: llm.encode_chat([{"role": "user", "content": "a"}])),
    ],
)
def test_damaged_sidecars_are_one_sentence(name: str, content: str, use: Any, own_bundle: MakeBundle) -> None:
    llm = LLM.load(change_sidecar(own_bundle("int4"), name, content), threads=1)
    with pytest.raises(EdgewrightError) as error:
        use(llm)
    assert "Traceback" not in str(error.value)


def test_eos_ids_by_the_order_of_sources(tmp_path: Path) -> None:
    """generation_config first, then the model's config, then the tokenizer."""
    source = write_source(tmp_path / "s")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "eos_token_id": [7, 8]}))
    (source / "generation_config.json").write_text("{}")
    built = export(source, tmp_path / "b")
    assert LLM.load(built.path, threads=1).eos_ids == (7, 8)
    (source / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    built = export(source, tmp_path / "c")
    assert LLM.load(built.path, threads=1).eos_ids == (EOS,)


def test_model_ids_tell_builds_apart(shared_bundle: MakeBundle, source: Path, tmp_path: Path) -> None:
    ids = {LLM.load(shared_bundle(recipe), threads=1).model_id for recipe in ("int4", "int8")}
    again = deploy(source, tmp_path / "again", recipe="int4", verify=False).path
    assert LLM.load(again, threads=1).model_id in ids
    assert len(ids) == 2
