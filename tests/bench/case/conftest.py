"""Bundles that cases name: made once, never changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import TEXT_GOLDENS, write_source
from edgewright.build.pipeline import deploy

POLICY = Path(__file__).parents[2] / "goldens" / "policies" / "pi05" / "checkpoint"
#: Of the golden `llama`: numbers in a row of embeddings, tokens, and the context.
HIDDEN, VOCAB, CONTEXT = 40, 97, 256

#: The block of a Genie dialog configuration that the library takes.
ENGINE = {
    "version": 1, "n-threads": 3,
    "model": {"version": 1, "type": "binary", "binary": {"version": 1, "ctx-bins": ["a"]}},
    "backend": {"version": 1, "type": "QnnHtp", "QnnHtp": {
        "version": 1, "spill-fill-bufsize": 0, "mmap-budget": 0, "use-mmap": True, "cpu-mask": "0xe0", "poll": True,
        "kv-dim": 64}},
}  # fmt: skip
DIALOG = {
    "version": 1, "type": "basic", "tokenizer": {"version": 1, "path": "tokenizer.json"}, "engine": ENGINE,
    "context": {"version": 1, "size": 64, "n-vocab": 97, "bos-token": 1, "eos-token": 2},
}  # fmt: skip


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that is fed rows of embeddings."""
    folder = tmp_path_factory.mktemp("outside") / "bundle"
    return deploy(TEXT_GOLDENS / "llama", folder, recipe="float32", embeddings="outside", verify=False).path


@pytest.fixture(scope="session")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that is fed token ids."""
    folder = tmp_path_factory.mktemp("inside") / "bundle"
    return deploy(TEXT_GOLDENS / "llama", folder, recipe="float32", verify=False).path


@pytest.fixture(scope="session")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a tokenizer, a token for each character, and a chat template."""
    folder = tmp_path_factory.mktemp("talking")
    return deploy(write_source(folder / "source"), folder / "bundle", recipe="float32", verify=False).path


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a robot policy."""
    folder = tmp_path_factory.mktemp("policy") / "bundle"
    return deploy(POLICY, folder, recipe="float32", verify=False).path
