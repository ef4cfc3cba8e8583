"""Fixtures of the command line's tests: checkpoints and bundles made once, a runner that keeps the output apart."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgewright.cli import main

from .tiny import GOLDENS, llama_folder


@dataclass(frozen=True)
class Result:
    """What a command returned and printed."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A function (*arguments, stdin="") -> Result that runs the command in this process."""

    def run(*arguments: object, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Result(code, printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def llama() -> Path:
    """A checkpoint without a tokenizer whose logits are known."""
    return GOLDENS / "text" / "llama"


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer and a chat template; not to be changed."""
    return llama_folder(tmp_path_factory.mktemp("talker") / "source")


@pytest.fixture
def checkpoint(talker: Path, tmp_path: Path) -> Path:
    """A copy of `talker` to be spoilt."""
    return Path(shutil.copytree(talker, tmp_path / "source"))


@pytest.fixture(scope="session")
def plain_bundle(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle of `llama`, not verified; not to be changed."""
    folder = tmp_path_factory.mktemp("plain") / "bundle"
    arguments = ["deploy", str(llama), "-o", str(folder), "--recipe", "float32", "--no-verify", "--quiet"]
    assert main(arguments) == 0
    return folder


@pytest.fixture(scope="session")
def talking_bundle(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle of `talker`, not verified; not to be changed."""
    folder = tmp_path_factory.mktemp("talking") / "bundle"
    arguments = ["deploy", str(talker), "-o", str(folder), "--recipe", "float32", "--no-verify", "--quiet"]
    assert main(arguments) == 0
    return folder


@pytest.fixture(scope="session")
def policy_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle of the policy golden `pi05`, not verified; not to be changed."""
    folder = tmp_path_factory.mktemp("policy") / "bundle"
    source = GOLDENS / "policies" / "pi05" / "checkpoint"
    assert main(["deploy", str(source), "-o", str(folder), "--recipe", "float32", "--no-verify", "--quiet"]) == 0
    return folder


@pytest.fixture
def bundle(talking_bundle: Path, tmp_path: Path) -> Path:
    """A copy of `talking_bundle` to be spoilt."""
    return Path(shutil.copytree(talking_bundle, tmp_path / "bundle"))
