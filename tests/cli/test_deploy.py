from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgewright.bundle import check_files, read_manifest

from .conftest import Cli
from .tiny import edit_json, the_sentence


def test_deploy_says_what_it_will_do_and_what_it_did(cli: Cli, talker: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    result = cli("deploy", talker, "-o", output, "--no-verify")
    assert result.code == 0
    plan, *steps = result.err.splitlines()
    # 400 tokens by 40 for table and head, and the golden's layers and norms.
    assert plan.startswith(f"plan: {talker} (llama, 62.5 k parameters stored in 250 kB) -> recipe int4 -> cpu, not")
    assert [step.split(" ...")[0] for step in steps] == [
        "hash source",
        "build graph",
        "write tokenizer",
        "write weights",
        "compile for cpu",
    ]
    first, *rest = result.out.splitlines()
    manifest = read_manifest(output)
    check_files(output, manifest)
    assert first.startswith(f"{output}: written, ")
    assert first.endswith(f" in {len(manifest.files) + 1} files")
    assert rest[0].startswith("weights   ")
    assert "int4 group 32" in rest[0]
    assert "0 of 23 taken over bit-exactly" in rest[0]
    assert rest[1:] == ["target    cpu", "verdict   not checked"]
    assert {path.name for path in tmp_path.iterdir()} == {"bundle"}


def test_deploy_verifies_by_default_and_a_second_time_does_nothing(cli: Cli, llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    made = cli("deploy", llama, "-o", output, "--recipe", "float32", "--quiet")
    assert (made.code, made.err) == (0, "")
    assert "verdict   passed" in made.out
    assert "  weights: passed, " in made.out
    before = (output / "manifest.json").stat().st_mtime_ns
    again = cli("deploy", llama, "-o", output, "--recipe", "float32")
    assert (again.code, again.err) == (0, "")
    assert again.out.startswith(f"{output}: unchanged, nothing to do, ")
    assert again.out.splitlines()[1:] == made.out.splitlines()[1:]
    assert (output / "manifest.json").stat().st_mtime_ns == before


def test_unchanged_is_answered_without_the_heavy_imports(plain_bundle: Path, llama: Path) -> None:
    code = (
        "import sys\n"
        "from edgewright.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "print('loaded:', [name for name in ('onnx', 'onnx_ir', 'onnxruntime', 'tokenizers') if name in sys.modules])\n"
        "sys.exit(code)\n"
    )
    words = ["deploy", str(llama), "-o", str(plain_bundle), "--recipe", "float32", "--no-verify"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "unchanged, nothing to do" in done.stdout
    assert done.stdout.endswith("loaded: []\n")


def test_json(cli: Cli, llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    words = ("deploy", llama, "-o", output, "--recipe", "int8", "--max-context", 64, "--no-verify", "--json")
    made = json.loads(cli(*words).out)
    again = json.loads(cli(*words).out)
    assert again == {**made, "reused": True}
    assert made["path"] == str(output)
    assert made["reused"] is False
    assert made["bytes"] == sum(p.stat().st_size for p in output.rglob("*") if p.is_file())
    assert made["model"]["max_context"] == 64
    assert made["recipe"] == {"name": "int8", "formats": {"int8 group 32": 23}, "bit_exact": 0, "modules": 23}
    assert made["target"] == "cpu"
    assert made["verdict"] == {"status": "not checked"}


def test_an_existing_output_is_kept_unless_forced(cli: Cli, llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    output.mkdir()
    (output / "mine.txt").write_text("keep")
    for force in ([], ["--force"]):
        result = cli("deploy", llama, "-o", output, "--no-verify", *force)
        assert result.code == 4
        assert "plan:" not in result.err
        the_sentence(result.err, "bundle exists and is no bundle")
        assert (output / "mine.txt").read_text() == "keep"
    (output / "mine.txt").unlink()
    assert cli("deploy", llama, "-o", output, "--recipe", "int8", "--no-verify", "--force").code == 0
    result = cli("deploy", llama, "-o", output, "--no-verify")
    assert result.code == 4
    the_sentence(result.err, "bundle exists already", "--force")
    assert cli("deploy", llama, "-o", output, "--no-verify", "--force").code == 0
    assert read_manifest(output).recipe["name"] == "int4"


def test_the_checkpoint_is_never_replaced(cli: Cli, llama: Path, tmp_path: Path) -> None:
    inside = shutil.copytree(llama, tmp_path / "model")
    (tmp_path / "model" / "manifest.json").write_text("{}")
    for output in (inside, tmp_path):
        result = cli("deploy", inside, "-o", output, "--no-verify", "--force")
        assert result.code == 4
        assert (inside / "config.json").is_file()


def test_a_bundle_of_another_recipe_is_not_taken_for_this_one(cli: Cli, llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    assert cli("deploy", llama, "-o", output, "--recipe", "float32", "--no-verify").code == 0
    for change in (["--recipe", "int8"], ["--recipe", "float32", "--max-context", "9"]):
        result = cli("deploy", llama, "-o", output, "--no-verify", *change)
        assert result.code == 4
        the_sentence(result.err, "exists already")


def test_a_file_in_the_way(cli: Cli, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = cli("deploy", llama, "-o", tmp_path / "file" / "bundle", "--no-verify")
    assert result.code == 4
    the_sentence(result.err, "Writing bundle failed", str(tmp_path / "file"), "choose another place")
    result = cli("deploy", llama, "-o", tmp_path / "file", "--no-verify", "--force")
    assert result.code == 4
    the_sentence(result.err, "exists and is no bundle")
    assert (tmp_path / "file").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_read_only_folder(cli: Cli, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as root, whom permissions don't stop.
    def refuse(path: Path, *args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    result = cli("deploy", llama, "-o", tmp_path / "bundle", "--no-verify")
    assert result.code == 4
    the_sentence(result.err, "can't be written (Read-only file system)", "choose a folder you may write to")
    assert list(tmp_path.iterdir()) == []


def test_no_space(cli: Cli, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgewright.build import pipeline

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pipeline, "write_stage", full)
    result = cli("deploy", llama, "-o", tmp_path / "bundle", "--no-verify")
    assert result.code == 4
    the_sentence(result.err, "No space is left while writing bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_in_the_middle_of_the_weights(talker: Path, tmp_path: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    words = ["deploy", str(talker), "-o", str(tmp_path / "bundle"), "--recipe", "float32", "--no-verify"]
    done = subprocess.run(
        [sys.executable, "-m", "edgewright", *words],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        timeout=60,
    )
    assert done.returncode == 4, done.stderr
    the_sentence(done.stderr, "Writing bundle failed (File too large)")
    assert not (tmp_path / "bundle").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


def test_unknown_target(cli: Cli, llama: Path, tmp_path: Path) -> None:
    result = cli("deploy", llama, "-o", tmp_path / "bundle", "--target", "npu")
    assert result.code == 2
    the_sentence(result.err, "'npu' is unknown", "known are cpu")


def test_a_context_that_the_model_does_not_have(cli: Cli, llama: Path, tmp_path: Path) -> None:
    result = cli("deploy", llama, "-o", tmp_path / "bundle", "--max-context", 257)
    assert result.code == 3
    the_sentence(result.err, "257", "1 to 256")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_verification_keeps_nothing(
    cli: Cli, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import edgewright.verify

    class Wrong:
        passed = False

        def reason(self) -> str:
            return "engine: the cosine is 0.5."

    monkeypatch.setattr(edgewright.verify, "verify_bundle", lambda *args, **kwargs: Wrong())
    result = cli("deploy", llama, "-o", tmp_path / "bundle")
    assert result.code == 1
    the_sentence(result.err, "failed verification and was not kept", "the cosine is 0.5")
    assert list(tmp_path.iterdir()) == []


SLOW = """
import sys, time
from edgewright.build import pipeline
plain = pipeline.{name}
def slow(*args, **kwargs):
    result = plain(*args, **kwargs)
    print("in the middle", file=sys.stderr, flush=True)
    time.sleep(30)
    return result
pipeline.{name} = slow
from edgewright.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("name", "number"), [("write_stage", signal.SIGINT), ("_seal", signal.SIGINT), ("_seal", signal.SIGTERM)]
)
def test_an_interrupt_leaves_nothing(name: str, number: signal.Signals, llama: Path, tmp_path: Path) -> None:
    words = ["deploy", str(llama), "-o", str(tmp_path / "bundle"), "--no-verify"]
    command = [sys.executable, "-c", SLOW.format(name=name), *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while process.stderr.readline() != "in the middle\n":
        assert process.poll() is None
    (partial,) = tmp_path.iterdir()
    assert partial.name.startswith(f".bundle.partial-{process.pid}-")
    start = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - start < 10
    assert (process.returncode, err, out) == (130, "edgewright: interrupted\n", "")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_keeps_what_force_would_have_replaced(llama: Path, plain_bundle: Path, tmp_path: Path) -> None:
    output = shutil.copytree(plain_bundle, tmp_path / "bundle")
    (output / "mine.txt").write_text("keep")
    words = ["deploy", str(llama), "-o", str(output), "--recipe", "float16", "--no-verify", "--force"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW.format(name="_seal"), *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while process.stderr.readline() != "in the middle\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert (output / "mine.txt").read_text() == "keep"


def test_a_changed_source_is_built_anew(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    words = ("deploy", checkpoint, "-o", output, "--recipe", "float32", "--no-verify", "--force")
    assert cli(*words).code == 0
    edit_json(checkpoint / "config.json", rope_parameters={"rope_theta": 7000.0, "rope_type": "default"})
    assert ": written, " in cli(*words).out
    (checkpoint / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert ": written, " in cli(*words).out
    assert (output / "sidecars" / "chat_template.jinja").read_text() == "{{ messages[0].content }}"
    assert "unchanged" in cli(*words).out
