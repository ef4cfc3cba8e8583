from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgewright import __version__
from edgewright.cli import _main, doctor, main
from edgewright.cli._progress import progress_for

from .conftest import Cli
from .tiny import the_sentence

HEAVY = ("numpy", "onnx", "onnx_ir", "onnxruntime", "yaml", "tokenizers", "jinja2", "ml_dtypes", "tqdm")


def in_process(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
    )


def test_help_of_every_verb_loads_nothing_heavy() -> None:
    done = in_process(
        "import sys\n"
        "from edgewright.cli import main\n"
        "from edgewright.cli._main import VERBS\n"
        "assert main(['--help']) == 0\n"
        "for verb in VERBS:\n"
        "    assert main([verb, '--help']) == 0, verb\n"
        f"print('loaded:', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    assert done.returncode == 0, done.stderr
    assert "loaded: []" in done.stdout
    for verb in _main.VERBS:
        assert f"usage: edgewright {verb}" in done.stdout


def test_help_documents_verbs_and_exit_codes(cli: Cli) -> None:
    result = cli("--help")
    assert result.code == 0
    for verb in _main.VERBS:
        assert f"\n  {verb:<9}" in result.out
    for code in (0, 1, 2, 3, 4, 70, 130, 141):
        assert f"\n  {code:<5}" in result.out
    assert result.err == ""


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"edgewright {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["deplyo"], ["'deplyo'", "did you mean deploy?", "export, compile, verify"]),
        ([], ["Give a verb"]),
        (["xyzzy"], ["'xyzzy'", "the verbs are plan, deploy"]),
        (["deploy", "a", "--recipy", "int4", "-o", "b"], ["--recipy", "did you mean --recipe?"]),
        (["deploy", "a", "--recipy=int4"], ["--recipy", "did you mean --recipe?"]),
        (["run", "b", "--temp", "1"], ["--temp", "did you mean --temperature?"]),
        (["--verison"], ["--verison", "did you mean --version?"]),
        (["deploy", "a"], ["-o/--output", "edgewright deploy --help"]),
        (["inspect", "a", "b"], ["unexpected argument 'b'"]),
        (["inspect", "a", "-x"], ["unknown flag '-x'"]),
        (["run", "b", "--max-tokens", "0"], ["--max-tokens", "'0' is not a whole number from 1"]),
        (["run", "b", "--prompt-ids", "1,x"], ["'1,x' is not a list of token ids"]),
        (["run", "b", "--chat", "--raw"], ["not allowed with"]),
        (["bench", "b", "--after", "1,-2"], ["--after", "'-2'"]),
        (["run", "b", "--seed", "many"], ["--seed", "'many'"]),
    ],
)
def test_wrong_command_lines(cli: Cli, arguments: list[str], parts: list[str]) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert result.out == ""
    the_sentence(result.err, *parts)


def test_a_value_that_looks_like_a_flag_is_a_value(cli: Cli) -> None:
    result = cli("run", "nowhere", "--prompt=--recipy is a flag")
    assert result.code == 3
    the_sentence(result.err, "nowhere does not exist")


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr(doctor, "run", fail)


def test_a_defect_is_one_sentence_and_a_traceback_only_on_request(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(ValueError("seven\nlines"), monkeypatch)
    result = cli("doctor")
    assert result.code == 70
    assert result.err == (
        "edgewright: internal error (ValueError: seven lines): please report it, run with --debug for the traceback.\n"
    )
    assert "Traceback" in cli("doctor", "--debug").err
    assert "Traceback" in cli("--debug", "doctor").err
    monkeypatch.setenv("EDGEWRIGHT_DEBUG", "1")
    assert "Traceback" in cli("doctor").err


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (MemoryError(), 4, "memory is used up"),
        (PermissionError(13, "Permission denied", "/some/file"), 4, "/some/file can't be used (Permission denied)"),
        (ModuleNotFoundError("No module named 'onnx'", name="onnx"), 4, "pip install 'edgewright[host]'"),
        (ModuleNotFoundError("No module named 'onnx_ir.x'", name="onnx_ir.x"), 4, "the package onnx_ir,"),
        (ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers"), 4, "pip install edgewright."),
    ],
)
def test_what_the_environment_refuses(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, part: str
) -> None:
    raising(error, monkeypatch)
    result = cli("doctor")
    assert result.code == code
    the_sentence(result.err, part)


def test_a_module_of_ours_that_is_missing_is_a_defect(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(ModuleNotFoundError("No module named 'edgewright.gone'", name="edgewright.gone"), monkeypatch)
    assert cli("doctor").code == 70


def test_interrupted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(KeyboardInterrupt(), monkeypatch)
    result = cli("doctor")
    assert (result.code, result.err) == (130, "edgewright: interrupted\n")


def test_signals_end_the_work_once_and_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = []

    def work(args: object) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)  # an impatient second press
            cleaned.append(True)
        return 0

    monkeypatch.setattr(doctor, "run", work)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert main(["doctor"]) == 130
    assert cleaned == [True]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_an_import_is_not_interrupted(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "module_that_stops.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []

    def work(args: object) -> int:
        import module_that_stops

        seen.append(module_that_stops.whole)
        time.sleep(20)
        return 0

    monkeypatch.setattr(doctor, "run", work)
    start = time.monotonic()
    result = cli("doctor")
    assert (result.code, result.err) == (130, "edgewright: interrupted\n")
    assert seen == [True]
    assert time.monotonic() - start < 10


def test_an_interrupt_that_gets_lost_is_heard_at_the_next_step(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(args: object) -> int:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        with progress_for(quiet=True).step("next"):
            return 0

    monkeypatch.setattr(doctor, "run", work)
    assert cli("doctor").code == 130


def test_what_becomes_of_an_interrupt_is_an_interrupt(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(args: object) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("a module failed to import") from None
        return 0

    monkeypatch.setattr(doctor, "run", work)
    result = cli("doctor")
    assert (result.code, result.err) == (130, "edgewright: interrupted\n")


def test_a_closed_pipe_is_quiet(plain_bundle: Path) -> None:
    # argparse itself swallows what happens to its help
    for words, code in ((["--help"], 0), (["inspect", str(plain_bundle)], 141)):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "edgewright", *words]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(writer)
        assert (done.returncode, done.stderr) == (code, "")


BLOCKED = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Gone())
from edgewright.cli import main
sys.exit(main(sys.argv[1:]))
"""
HOST = {"onnx", "onnx_ir", "ml_dtypes", "yaml", "tqdm", "google"}


@pytest.mark.parametrize(
    ("arguments", "package"),
    [
        (["deploy", "{source}", "-o", "{out}"], "ml_dtypes"),
        (["export", "{source}", "-o", "{out}"], "ml_dtypes"),
        (["compile", "{bundle}", "-o", "{out}"], "ml_dtypes"),
        (["verify", "{bundle}", "--against", "{source}"], "ml_dtypes"),
        (["inspect", "{source}"], "ml_dtypes"),
        (["inspect", "{bundle}/stages/llm/model.onnx"], "onnx"),
    ],
)
def test_without_the_host_extra(
    arguments: list[str], package: str, llama: Path, plain_bundle: Path, tmp_path: Path
) -> None:
    words = [a.format(source=llama, bundle=plain_bundle, out=tmp_path / "out") for a in arguments]
    code = BLOCKED.format(packages=HOST)
    done = in_process(code, *words, "--quiet")
    assert done.returncode == 4, done.stderr
    the_sentence(done.stderr, "pip install 'edgewright[host]'")
    assert list(tmp_path.iterdir()) == []


def test_the_device_verbs_need_no_host_extra(plain_bundle: Path) -> None:
    code = BLOCKED.format(packages=HOST)
    for words in (
        ["deploy", "--help"],
        ["run", str(plain_bundle), "--prompt-ids", "1,2", "--max-tokens", "1"],
        ["bench", str(plain_bundle), "--prompt-tokens", "4", "--decode-tokens", "2", "--after", "3", "--repeats", "1"],
        ["inspect", str(plain_bundle)],
        ["verify", str(plain_bundle)],
        ["doctor"],
    ):
        done = in_process(code, *words)
        assert done.returncode == 0, (words, done.stderr)
