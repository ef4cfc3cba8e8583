"""The vocabulary rule: what a tokenizer of another size means for a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import TOKENIZERS, changed, golden
from edgewright.build.pipeline import deploy
from edgewright.build.vocabulary import vocabulary_notes
from edgewright.errors import GenerationError, TensorMismatchError, TokenizerError
from edgewright.models import build_llm
from edgewright.runtime.llm import LLM


def tokenizer(count: int, added: dict[str, int] | None = None, kind: str = "BPE") -> bytes:
    words = [f"w{i}" for i in range(count)]
    vocab = [[w, -1.0] for w in words] if kind == "Unigram" else {w: i for i, w in enumerate(words)}
    extra = [{"content": name, "id": i} for name, i in (added or {}).items()]
    return json.dumps({"model": {"type": kind, "vocab": vocab}, "added_tokens": extra}).encode()


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_equal_sizes_are_no_note(kind: str) -> None:
    assert vocabulary_notes(tokenizer(97, kind=kind), 97) == []
    assert vocabulary_notes(tokenizer(95, {"<a>": 95, "<b>": 96}, kind), 97) == []
    assert vocabulary_notes(tokenizer(97, {"<a>": 3}, kind), 97) == []


def test_padded_tables_are_noted() -> None:
    assert vocabulary_notes(tokenizer(90), 97) == ["7 of the model's 97 token ids have no token in the tokenizer"]
    # An added token that stands apart leaves a gap.
    assert vocabulary_notes(tokenizer(90, {"<end>": 96}), 97)[0].startswith("6 of the model's 97")


def test_ids_beyond_the_vocabulary_are_noted_by_name() -> None:
    notes = vocabulary_notes(tokenizer(97, {"<image>": 97, "<audio>": 99}), 97)
    assert notes == [
        "the tokenizer has 2 ids beyond the model's vocabulary of 97, among them <image> (97), <audio> (99): "
        "prompts that contain them are refused"
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"model": 3}',
        b'{"model": {"vocab": {"a": "x"}}}',
        b'{"model": {"vocab": [[]]}}',
        b'{"model": {"vocab": {"a": -1}}}',
        b'{"model": {"vocab": {"a": Infinity}}}',
        b"[" * 5000,
    ],
)
def test_a_damaged_tokenizer_is_refused(data: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json can't be read"):
        vocabulary_notes(data, 97)


def test_a_bundle_with_a_larger_tokenizer_refuses_only_what_it_can_not_run(tmp_path: Path) -> None:
    """The tokenizer of 400 ids beside a model of 97: prompts within the vocabulary run."""
    source = tmp_path / "source"
    source.mkdir()
    for path in (*golden("llama").checkpoint.files, TOKENIZERS / "bpe_chatml" / "tokenizer.json"):
        (source / path.name).write_bytes(path.read_bytes())
    bundle = deploy(source, tmp_path / "bundle", verify=False)
    assert any("ids beyond the model's vocabulary of 97" in note for note in bundle.manifest.notes)
    llm = LLM.load(tmp_path / "bundle")
    assert len(llm.generate([1, 2, 3], max_tokens=2, ignore_eos=True).all_tokens()) == 2
    with pytest.raises(GenerationError, match="outside the vocabulary of 97"):
        llm.generate("the quick brown fox jumps over the lazy dog", max_tokens=2).all_tokens()


def test_config_and_tensors_must_agree() -> None:
    with pytest.raises(TensorMismatchError, match=r"embed_tokens\.weight has the shape \[97, 40\] where \[96, 40\]"):
        build_llm(changed(golden("llama").checkpoint, vocab_size=96))
