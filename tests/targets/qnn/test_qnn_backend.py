"""The QNN back end for a tiny model, end to end: binaries, description, Genie folder, logits in the simulator."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from conftest import golden, lowered, write_source
from edgewright.bundle.manifest import StageEntry
from edgewright.errors import TargetMismatchError, ToolError, UsageError
from edgewright.genie.checks import require
from edgewright.genie.config import read_dialog
from edgewright.genie.document import parse_file
from edgewright.graph.writer import write_stage
from edgewright.runtime.engine import open_engine
from edgewright.runtime.engines.qnn import QnnEngine
from edgewright.targets.qnn import BACKEND, compiler
from edgewright.targets.qnn.split import cuts_of, parts_of
from qnn_cases import compiled, cpu_engine, description, divergence, greedy, logits_of, spelled, work_of

IDS = golden("qwen3").ids[:20]
WANTED = golden("qwen3").logits[:20]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StageEntry]:
    """A compiled stage of a tiny qwen3, not to be changed."""
    return compiled(tmp_path_factory.getbasetemp() / "qnn")


@pytest.fixture(scope="module")
def simulated(made: tuple[Path, StageEntry]) -> QnnEngine:
    stands = BACKEND.stand_in(*made, threads=1)
    assert stands is not None
    assert "the binaries were neither loaded nor timed" in stands[1]
    return stands[0]


def test_the_simulator_gives_what_the_checkpoint_does(simulated: QnnEngine) -> None:
    got = logits_of(simulated, IDS)
    assert divergence(WANTED, got) < 0.01
    cosine = (got * WANTED).sum() / np.linalg.norm(got) / np.linalg.norm(WANTED)
    assert cosine > 0.998


def test_the_simulator_continues_as_the_same_codes_on_the_cpu(
    made: tuple[Path, StageEntry], simulated: QnnEngine
) -> None:
    engine = cpu_engine(*made)
    assert divergence(logits_of(engine, IDS), logits_of(simulated, IDS)) < 0.01
    assert greedy(simulated, IDS[:9], 8) == greedy(engine, IDS[:9], 8)


def test_the_entry_says_what_was_made(made: tuple[Path, StageEntry]) -> None:
    root, entry = made
    assert (entry.dialect, entry.runtime, entry.engine) == ("qnn", "qnn", "stages/llm/engine/metadata.json")
    assert entry.machine is not None
    assert (entry.machine.arch, entry.machine.features, entry.machine.engine) == ("htp-v75", (), "qnn")
    assert entry.contract.bounds["capacity"] == (1, 24)
    assert entry.contract.bounds["batch"] == (1, 1)
    assert entry.settings["soc"] == "8-gen-3"
    assert (entry.settings["rows"], entry.settings["context"], entry.settings["parts"]) == (4, 24, 1)
    assert entry.settings["weights"]["rounded uint16, one scale"] == 1
    assert sum(entry.settings["weights"].values()) == 16
    with pytest.raises(TargetMismatchError, match="was compiled for htp-v75"):
        open_engine(root, entry)


def test_both_graphs_share_one_binary(made: tuple[Path, StageEntry]) -> None:
    root, entry = made
    folder = root / "stages" / "llm" / "engine"
    assert {path.name for path in folder.iterdir()} == {
        "genie", "graphs", "tables", "metadata.json", "prompt_ar4_cl24_1_of_1.onnx", "token_ar1_cl24_1_of_1.onnx",
    }  # fmt: skip
    for name in ("prompt_ar4_cl24_1_of_1.onnx", "token_ar1_cl24_1_of_1.onnx"):
        node = onnx.load(folder / name).graph.node[0]
        attributes = {a.name: a for a in node.attribute}
        assert node.op_type == "EPContext"
        assert attributes["ep_cache_context"].s == b"genie/llm_part_1_of_1.bin"
    assert description(root, entry)["parts"][0]["binaries"] == ["genie/llm_part_1_of_1.bin"]


def test_the_genie_folder_is_one_that_genie_takes(made: tuple[Path, StageEntry]) -> None:
    root, entry = made
    folder = root / "stages" / "llm" / "engine" / "genie"
    dialog = read_dialog(folder / "genie_config.json")
    require(parse_file(folder / "htp_backend_ext_config.json"), "extensions")
    assert (dialog.context.size, dialog.context.n_vocab, dialog.context.eos) == (24, 97, (96, 95))
    htp = parse_file(folder / "genie_config.json").value["dialog"]["engine"]["backend"]["QnnHtp"]
    assert (htp["kv-dim"], htp["pos-id-dim"]) == (32, 16)
    assert htp["rope-theta"] == golden("qwen3").checkpoint.config["rope_parameters"]["rope_theta"]
    assert (folder / "tokenizer.json").read_bytes() == (root / "sidecars" / "tokenizer.json").read_bytes()
    told = parse_file(folder / "metadata.json").value
    prompt = told["components"]["prompt_1_of_1"]["inputs"]
    assert prompt["input_ids"] == {"shape": [1, 4], "dtype": "int32"}
    assert prompt["past_key_0_in"]["shape"] == [1, 1, 32, 20]
    assert prompt["attention_mask"]["quantization"]["offset"] == -65535
    assert description(root, entry)["genie"] == {"binaries": ["llm_part_1_of_1.bin"], "no_dialog": None}
    assert all((folder / name).is_file() for name in told["binaries"])


def test_the_same_inputs_give_the_same_bytes(made: tuple[Path, StageEntry], tmp_path: Path) -> None:
    root = tmp_path / "elsewhere" / "bundle"
    root.mkdir(parents=True)
    source = write_source(tmp_path / "source")
    entry = BACKEND.compile(work_of(source, root))
    assert entry == made[1]
    ours, theirs = (
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (root, made[0])
    )
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert not any(str(tmp_path).encode() in data for data in ours.values())


def test_parts_are_cut_where_one_activation_goes_on(tmp_path: Path) -> None:
    graph, _ = spelled("llama", tmp_path, rows=2, context=8)
    sizes = dict.fromkeys((name for name, source in graph.sources.items() if source.kind != "vector"), 100)
    cuts = cuts_of(graph, sizes, 900)
    parts = parts_of(graph, cuts)
    assert len(parts) == 3
    assert [node for part in parts for node in part.nodes] == graph.nodes
    held = [sum(sizes.get(name, 0) for node in part.nodes for name in node.input) for part in parts]
    assert max(held) <= 900
    assert sum(held) == sum(sizes.values())
    for before, after in itertools.pairwise(parts):
        (crossing,) = set(before.outputs) - set(graph.outputs)
        assert after.inputs[0] == crossing
    assert {name for part in parts for name in part.outputs} >= set(graph.outputs)
    with pytest.raises(
        UsageError, match=r"part-bytes is 150, and what can't be cut apart at .* has 200 bytes of weights and caches"
    ):
        cuts_of(graph, sizes, 150)


def test_caches_count_with_the_weights(tmp_path: Path) -> None:
    """A longer context is more parts, and refused where one layer's caches alone are too large."""
    made = []
    for context in (8, 2000):
        graph, _ = spelled("llama", tmp_path / str(context), rows=2, context=context)
        sizes = dict.fromkeys((name for name, source in graph.sources.items() if source.kind != "vector"), 100)
        caches = {name: 2 * math.prod(graph.shapes[name]) for name in graph.inputs if name.startswith("past_")}
        assert caches["past_key_0_in"] == 2 * 2 * 10 * (context - 2)
        made.append((graph, sizes | caches))
    assert cuts_of(*made[0], 200_000) == []
    assert len(cuts_of(*made[1], 200_000)) == 2
    with pytest.raises(UsageError, match=r"has \d+ bytes of weights and caches: give more, or a smaller context"):
        cuts_of(*made[1], 100_000)


def test_a_model_in_parts_and_narrow_caches_gives_the_same(tmp_path: Path) -> None:
    reference = golden("llama")
    source = write_source(tmp_path / "source", "llama")
    root = tmp_path / "bundle"
    root.mkdir()
    options = {"part-bytes": "30000", "kv": "uint8", "share": "off", "ar": "8", "context": "48", "tokens": "48"}
    entry = BACKEND.compile(work_of(source, root, **options))
    assert (entry.settings["parts"], entry.settings["kv"], entry.settings["shared_weights"]) == (2, "uint8", False)
    assert len(entry.settings["genie"]["binaries"]) == 4
    # Binaries of one graph each can be loaded by the simulator as they are.
    got = logits_of(open_engine(root, entry, check=False), reference.ids[:20])  # type: ignore[arg-type]
    assert divergence(reference.logits[:20], got) < 0.02


def test_without_a_tokenizer_there_is_no_dialog_and_the_reason(tmp_path: Path) -> None:
    from edgewright.targets.platform import find_platform
    from edgewright.targets.qnn.genie import write_genie
    from edgewright.targets.qnn.options import asked

    (tmp_path / "sidecars").mkdir()
    contract = lowered(golden("qwen3").checkpoint, "portable").contract
    cos = np.cos(np.outer(np.arange(3), 500.0 ** (-np.arange(16) / 16))).astype(np.float32)
    sin = np.sin(np.outer(np.arange(3), 500.0 ** (-np.arange(16) / 16))).astype(np.float32)
    soc = asked(find_platform("snapdragon-8-gen-3"), {}).soc

    def reason(tables: dict[str, np.ndarray], windows: dict[str, int | None]) -> str | None:
        return write_genie(
            tmp_path / "genie", tmp_path, contract, soc,
            context=24, binaries=["a.bin"], metadata={}, tables=tables, windows=windows, config=None,
        )  # fmt: skip

    plain = {"position_ids_cos": cos, "position_ids_sin": sin}
    assert reason(plain, {"attention_mask": None}) == "there is no tokenizer"
    source = write_source(tmp_path / "source")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(source / name, tmp_path / "sidecars" / name)
    assert reason(plain, {"attention_mask": None}) is None
    assert "rope-theta" in (tmp_path / "genie" / "genie_config.json").read_text(encoding="utf-8")
    assert "a window of the context" in str(reason(plain, {"attention_mask_window_8": 8}))
    scaled = {"position_ids_cos": cos * np.float32(1.1), "position_ids_sin": sin * np.float32(1.1)}
    assert "scales its positions" in str(reason(scaled, {"attention_mask": None}))


def test_a_compiler_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("NonZero", ["x"], ["y"])],
            "g",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 2])],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [2, "n"])],
        ),
        ir_version=10,
        opset_imports=[onnx.helper.make_opsetid("", 21)],
    )
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(ToolError, match=r"QNN provider failed on odd\.onnx: \S+ \S+"):
        compiler.make_contexts(tmp_path, {"ctx.onnx": "odd.onnx"}, "x.bin", {"soc_model": "57"}, share=False)
    assert [path.name for path in tmp_path.iterdir()] == ["odd.onnx"]


def test_a_compiler_that_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run

    def killed(command: list[str], **given: object) -> object:
        return real([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], **given)  # type: ignore[call-overload]

    monkeypatch.setattr(compiler.subprocess, "run", killed)
    with pytest.raises(ToolError, match="it ended with -9"):
        compiler.make_contexts(tmp_path, {"ctx.onnx": "a.onnx"}, "x.bin", {}, share=False)


def test_a_stage_is_compiled_again_over_what_was_there(made: tuple[Path, StageEntry], tmp_path: Path) -> None:
    stage = lowered(golden("qwen3").checkpoint, "qnn", "int8")
    write_stage(stage, tmp_path)
    ours = (tmp_path / "model.onnx").read_bytes()
    assert ours == (made[0] / "stages" / "llm" / "model.onnx").read_bytes()
