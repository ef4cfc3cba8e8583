"""`edgewright genie-config`: what is written for a chip, what is asked for, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.cli import main
from edgewright.genie.config import read_config, read_dialog
from edgewright.runtime.encoding import Encoding
from edgewright.runtime.llm import LLM
from edgewright.runtime.rawtable import RawTable

from .conftest import Cli
from .tiny import edit_json, llama_folder, the_sentence

TOOLS = Path(__file__).parent.parent.parent / "tools" / "goldens"


@pytest.fixture(scope="module")
def outside_bundle(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float32 bundle of `talker` with its table outside the graph; not to be changed."""
    folder = tmp_path_factory.mktemp("outside") / "bundle"
    words = ["deploy", talker, "-o", folder, "--recipe", "float32", "--embeddings", "outside", "--no-verify", "--quiet"]
    assert main([str(word) for word in words]) == 0
    return folder


def written(folder: Path) -> list[dict[str, Any]]:
    """The dialog's configuration and the extensions."""
    return [json.loads((folder / name).read_text()) for name in ("genie_config.json", "htp_backend_ext_config.json")]


def test_a_folder_for_a_chip(talking_bundle: Path, talker: Path, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "genie"
    result = cli("genie-config", talking_bundle, "--for", "8-gen-3", "-o", out, "--model-config", talker)
    assert result.code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "genie_config.json", "htp_backend_ext_config.json", "tokenizer.json",
    ]  # fmt: skip
    assert "source_part_1_of_1.bin, named after the model) are not made here" in result.err
    assert "soc_model 57, v75" in result.out
    config, extensions = written(out)
    dialog = config["dialog"]
    assert dialog["type"] == "basic"
    context = {name: dialog["context"][name] for name in ("size", "n-vocab", "bos-token")}
    assert context == {"size": 256, "n-vocab": 400, "bos-token": 1}
    htp = dialog["engine"]["backend"]["QnnHtp"]
    assert (htp["kv-dim"], htp["pos-id-dim"], htp["rope-theta"]) == (10, 5, 5000)
    assert (htp["poll"], htp["use-mmap"], htp["cpu-mask"]) == (True, True, "0xe0")
    assert dialog["engine"]["model"]["binary"]["ctx-bins"] == ["source_part_1_of_1.bin"]
    assert dialog["sampler"] == {"version": 1, "seed": 42, "temp": 0.0}
    assert "embedding" not in dialog
    core = {"core_id": 0, "perf_profile": "burst", "rpc_control_latency": 100}
    assert extensions == {
        "devices": [{"soc_model": 57, "dsp_arch": "v75", "cores": [core]}],
        "memory": {"mem_type": "shared_buffer"},
        "context": {"weight_sharing_enabled": True},
    }
    assert (out / "tokenizer.json").read_bytes() == (talker / "tokenizer.json").read_bytes()
    assert read_dialog(out / "genie_config.json").engines[0].files == ("source_part_1_of_1.bin",)
    read_config(out / "htp_backend_ext_config.json", "extensions")


def test_what_the_user_says_holds(talking_bundle: Path, cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "genie"
    words = ["--context", "64", "--bos", "3", "--eos", "7,8", "--rope-theta", "1e6", "--no-poll", "--threads", "5"]
    words += ["--cpu-mask", "0x0f", "--seed", "9", "--device-id", "1", "--perf-profile", "balanced"]
    result = cli(
        "genie-config", talking_bundle, "--for", "x-elite", "-o", out, *words, "--ctx-bins", "a.bin", "b.bin", "--json"
    )
    assert result.code == 0
    found = json.loads(result.out)
    assert found["chip"] == {"name": "x-elite", "soc_model": 60, "dsp_arch": "v73"}
    assert found["binaries"] == ["a.bin", "b.bin"]
    config, extensions = written(out)
    dialog = read_dialog(out / "genie_config.json")
    assert (dialog.context.size, dialog.context.bos, dialog.context.eos) == (64, 3, (7, 8))
    assert (dialog.engines[0].n_threads, dialog.engines[0].files) == (5, ("a.bin", "b.bin"))
    htp = config["dialog"]["engine"]["backend"]["QnnHtp"]
    assert (htp["poll"], htp["use-mmap"], htp["cpu-mask"], htp["rope-theta"]) == (False, False, "0x0f", 1000000)
    assert extensions["devices"][0]["device_id"] == 1
    assert extensions["devices"][0]["cores"][0]["perf_profile"] == "balanced"


@pytest.mark.parametrize(("name", "model", "arch"), [("SA8255P", 52, "v73"), ("Snapdragon 8 Elite", 69, "v79")])
def test_chips_by_other_names(talking_bundle: Path, cli: Cli, tmp_path: Path, name: str, model: int, arch: str) -> None:
    out = tmp_path / "genie"
    assert cli("genie-config", talking_bundle, "--for", name, "-o", out, "--bos", 1, "--rope-theta", 5000).code == 0
    assert written(out)[1]["devices"][0] | {"cores": []} == {"soc_model": model, "dsp_arch": arch, "cores": []}


def test_a_chip_that_is_not_known(talking_bundle: Path, cli: Cli, tmp_path: Path) -> None:
    words = ["genie-config", talking_bundle, "-o", tmp_path / "genie", "--bos", 1, "--rope-theta", 5000, "--for"]
    result = cli(*words, "8-gen-33")
    assert result.code == 2
    the_sentence(result.err, "did you mean '8-gen-3'?", "--soc-model and --dsp-arch")
    assert cli(*words, "new", "--soc-model", 99, "--dsp-arch", "seventy").code == 2
    assert cli(*words, "new", "--soc-model", 99, "--dsp-arch", "v85").code == 0
    assert written(tmp_path / "genie")[1]["devices"][0]["soc_model"] == 99


@pytest.mark.parametrize("dtype", ["float32", "uint16", "int8"])
def test_the_table_as_a_raw_file(outside_bundle: Path, cli: Cli, tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "genie"
    words = [
        "genie-config",
        outside_bundle,
        "--for",
        "sa8775",
        "-o",
        out,
        "--bos",
        1,
        "--rope-theta",
        5000,
        "--table",
        dtype,
    ]
    assert cli(*words).code == 0
    embedding = read_dialog(out / "genie_config.json").embedding
    assert embedding is not None
    assert (embedding.type, embedding.lut_path, embedding.dtype, embedding.size) == (
        "lut", "embedding_weights.raw", dtype, 40,
    )  # fmt: skip
    encoding = Encoding() if dtype == "float32" else Encoding(dtype, embedding.scale, embedding.offset)  # type: ignore[arg-type]
    table = RawTable(out / "embedding_weights.raw", encoding, 40)
    assert table.vocab == 400
    ids = np.arange(400)
    wanted = LLM.load(outside_bundle, threads=1).embed(ids.tolist())
    assert np.abs(table.rows(ids) - wanted).max() <= (0 if dtype == "float32" else encoding.scale * 0.51)


def test_a_table_without_a_file_is_the_program_s(outside_bundle: Path, cli: Cli, tmp_path: Path) -> None:
    result = cli(
        "genie-config", outside_bundle, "--for", "sa8797", "-o", tmp_path / "g", "--bos", 1, "--rope-theta", 5000
    )
    assert "the program's callback" in result.err
    assert written(tmp_path / "g")[0]["dialog"]["embedding"] == {"version": 1, "size": 40, "type": "callback"}


def test_sampling_and_rope_scaling_of_the_checkpoint(cli: Cli, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    source = llama_folder(tmp_path / "source", rope_parameters=scaling)
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2}
    (source / "generation_config.json").write_text(
        json.dumps({**generation, "bos_token_id": 4, "eos_token_id": [5, 6]})
    )
    words = ["deploy", source, "-o", tmp_path / "bundle", "--recipe", "float32", "--no-verify", "--quiet"]
    assert cli(*words).code == 0
    words = ["genie-config", tmp_path / "bundle", "--for", "sa8255", "-o", tmp_path / "g", "--model-config"]
    assert cli(*words, source / "config.json").code == 0
    dialog = written(tmp_path / "g")[0]["dialog"]
    assert dialog["sampler"] == {
        "version": 1, "seed": 42, "temp": 0.6, "top-k": 20, "top-p": 0.9,
        "token-penalty": {"version": 1, "penalize-last-n": 256, "repetition-penalty": 1.2},
    }  # fmt: skip
    assert (dialog["context"]["bos-token"], dialog["context"]["eos-token"]) == (4, [5, 6])
    assert "rope-theta" not in dialog["engine"]["backend"]["QnnHtp"]
    assert dialog["engine"]["model"]["positional-encoding"] == {
        "type": "rope", "rope-dim": 5, "rope-theta": 500000,
        "rope-scaling": {
            "rope-type": "llama3", "factor": 8.0, "low-freq-factor": 1.0, "high-freq-factor": 4.0,
            "original-max-position-embeddings": 64,
        },
    }  # fmt: skip
    edit_json(source / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 1.0})
    result = cli(*words, source / "config.json", "--force")
    assert result.code == 2
    the_sentence(result.err, "is not the config.json that the bundle was built from")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --model-config"),
        (("--rope-theta", "5000", "--model-config", "."), "one of them"),
        (("--rope-theta", "0"), "not a number above 0"),
        (("--rope-theta", "nan"), "not a number above 0"),
        (("--rope-theta", "5000"), "give --bos"),
        (("--model-config", "missing.json"), "can't be read (No such file"),
        (("--bos", "1", "--rope-theta", "5000", "--context", "257"), "built for 256 tokens"),
        (("--rope-theta", "5000", "--table", "uint8"), "no --table to write"),
        (("--rope-theta", "5000", "--seed", "2147483648"), "int32"),
        (("--model-config", "/dev/zero"), "more than 16777216 bytes"),
        (("--bos", "400", "--rope-theta", "5000"), "token 400 is none of the model's, which end with 399"),
        (("--bos", "1", "--eos", "2,99999999999", "--rope-theta", "5000"), "token 99999999999 is none"),
        (("--bos", "1", "--rope-theta", "5000", "--cpu-mask", "all"), "cpu-mask is no mask"),
        (("--ctx-bins", ""), "'' is empty"),
    ],
)
def test_what_is_refused(talking_bundle: Path, cli: Cli, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    result = cli("genie-config", talking_bundle, "--for", "sa8255", "-o", tmp_path / "g", *words)
    assert result.code == 2
    the_sentence(result.err, said)
    assert not (tmp_path / "g").exists()


def test_bundles_that_genie_can_t_run(plain_bundle: Path, policy_bundle: Path, cli: Cli, tmp_path: Path) -> None:
    words = ["--for", "sa8255", "-o", tmp_path / "g", "--bos", 1, "--rope-theta", 5000]
    result = cli("genie-config", policy_bundle, *words)
    assert result.code == 3
    the_sentence(result.err, "no language model")
    result = cli("genie-config", plain_bundle, *words)
    assert result.code == 3
    the_sentence(result.err, "no tokenizer.json")


def test_folders_that_exist(talking_bundle: Path, cli: Cli, tmp_path: Path) -> None:
    words = ["genie-config", talking_bundle, "--for", "sa8255", "-o", tmp_path / "g", "--bos", 1, "--rope-theta", 5000]
    assert cli(*words).code == 0
    assert cli(*words).code == 4
    # The context binaries were put there by hand, as we say: they stay.
    (tmp_path / "g" / "part_1.bin").write_text("x")
    assert cli(*words, "--force", "--no-poll").code == 0
    assert written(tmp_path / "g")[0]["dialog"]["engine"]["backend"]["QnnHtp"]["poll"] is False
    assert sorted(path.name for path in (tmp_path / "g").iterdir()) == [
        "genie_config.json", "htp_backend_ext_config.json", "part_1.bin", "tokenizer.json",
    ]  # fmt: skip
    before = (tmp_path / "g" / "genie_config.json").read_bytes()
    assert cli(*words, "--force", "--cpu-mask", "all").code == 2
    assert (tmp_path / "g" / "genie_config.json").read_bytes() == before
    shutil.rmtree(tmp_path / "g")
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "mine.txt").write_text("x")
    assert cli(*words, "--force").code == 4
    assert (tmp_path / "g" / "mine.txt").exists()


def test_files_are_checked(talking_bundle: Path, cli: Cli, tmp_path: Path) -> None:
    words = ["genie-config", talking_bundle, "--for", "sa8255", "-o", tmp_path / "g", "--bos", 1, "--rope-theta", 5000]
    assert cli(*words).code == 0
    files = [tmp_path / "g" / name for name in ("genie_config.json", "htp_backend_ext_config.json")]
    result = cli("genie-config", "--check", *files)
    assert result.code == 0
    assert [line.split(": ")[1] for line in result.out.splitlines()] == [
        "Genie takes this dialog", "Genie takes this back end extension",
    ]  # fmt: skip
    assert [one["kind"] for one in json.loads(cli("genie-config", "--json", "--check", *files).out)["files"]] == [
        "dialog", "extensions",
    ]  # fmt: skip
    files[0].write_text(files[0].read_text().replace('"kv-dim"', '"kv_dim"'))
    result = cli("genie-config", "--check", *files)
    assert result.code == 3
    the_sentence(result.err, "genie_config.json, line 3", "kv_dim", "did you mean 'kv-dim'?")
    files[0].write_text('{"a": 1}')
    the_sentence(cli("genie-config", "--check", files[0]).err, "none of the keys", "standalone-engine")
    twice = tmp_path / "s.json"
    twice.write_text('{"sampler": {"version": 1, "seed": 1, "seed": 2}}')
    assert "sampler.seed is written twice" in cli("genie-config", "--check", twice).err
    assert cli("genie-config", talking_bundle, "--check", twice).code == 2
    the_sentence(cli("genie-config", talking_bundle).err, "Give --for, -o, too")


def test_the_library_takes_what_is_written(outside_bundle: Path, talker: Path, cli: Cli, tmp_path: Path) -> None:
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        pytest.skip("the package onnxruntime-qnn, which has libGenie, is not installed")
    words = ["genie-config", outside_bundle, "--for", "8-elite", "-o", tmp_path / "g", "--model-config", talker]
    assert cli(*words, "--table", "uint16").code == 0
    command = [sys.executable, TOOLS / "make_genie_verdicts.py", "--ask", tmp_path / "g" / "genie_config.json"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == ["0", "True"]
