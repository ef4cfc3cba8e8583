"""Build plans: shapes from a contract's bounds, two profiles for dialogs, what trtexec and the scripts are told."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path

import pytest

from edgewright.contract import StageContract, TensorContract
from edgewright.errors import BundleError
from edgewright.targets.tensorrt.plan import Bounds, plan_of, within
from edgewright.targets.tensorrt.script import write_scripts
from edgewright.targets.tensorrt.trtexec import command

DIALOG = StageContract(
    inputs=(
        TensorContract("input_ids", "int64", ("batch", "seq")),
        TensorContract("past_lengths", "int64", ("batch",)),
        TensorContract("logit_positions", "int64", ("positions",)),
        TensorContract("past_key.0", "float16", ("batch", 2, "capacity", 8)),
    ),
    outputs=(TensorContract("logits", "float32", ("batch", "positions", 99)),),
    bounds={"batch": (1, 64), "seq": (1, 2048), "positions": (0, 2048), "capacity": (2048, 2048)},
)
PREFIX = StageContract(
    inputs=(
        TensorContract("image_features", "float32", ("batch", "image_slots", 24)),
        TensorContract("token_ids", "int64", ("batch", "text")),
        TensorContract("prefix_mask", "int64", ("batch", "prefix")),
        TensorContract("state", "float32", ("batch", 32)),
        TensorContract("scale", "float32", (1,)),
    ),
    outputs=(),
    bounds={"batch": (1, 4), "image_slots": (0, 73), "text": (0, 73), "prefix": (1, 73)},
)


def test_a_dialog_has_a_profile_for_prompts_and_one_for_tokens() -> None:
    plan = plan_of("llm", within(DIALOG, 4), "8.9")
    context, generation = plan.profiles
    assert (context.name, generation.name) == ("context", "generation")
    # No more rows than the runtime gives at once.
    assert context.shapes["input_ids"] == Bounds((1, 1), (1, 512), (4, 512))
    assert generation.shapes["input_ids"] == Bounds((1, 1), (1, 1), (4, 1))
    assert context.shapes["logit_positions"] == Bounds((0,), (1,), (512,))
    assert generation.shapes["logit_positions"] == Bounds((0,), (1,), (1,))
    for profile in plan.profiles:
        assert profile.shapes["past_key.0"] == Bounds((1, 2, 2048, 8), (1, 2, 2048, 8), (4, 2, 2048, 8))


def test_the_contract_says_what_the_engine_takes() -> None:
    bounds = within(DIALOG, 4).bounds
    assert bounds == {"batch": (1, 4), "seq": (1, 512), "positions": (0, 512), "capacity": (2048, 2048)}
    assert within(DIALOG, 1000).bounds["batch"] == (1, 64)


def test_the_parts_of_a_prefix_fit_each_other() -> None:
    """TensorRT refuses usual sizes that the graph's own sums contradict."""
    (profile,) = plan_of("prefix", PREFIX, "8.9").profiles
    images, text, rows = (profile.shapes[name].opt[1] for name in ("image_features", "token_ids", "prefix_mask"))
    assert images + text + 1 == rows == 73
    assert "scale" not in profile.shapes
    assert profile.shapes["state"] == Bounds((1, 32), (1, 32), (4, 32))


def test_a_stage_of_fixed_shapes_has_no_profile() -> None:
    fixed = StageContract(inputs=(TensorContract("x", "float32", (1, 4)),), outputs=())
    assert plan_of("vision", fixed, "8.9").profiles == ()


def test_a_dimension_without_bounds_is_named() -> None:
    loose = StageContract(
        inputs=(TensorContract("x", "float32", ("batch", "rows")),), outputs=(), bounds={"batch": (1, 2)}
    )
    with pytest.raises(BundleError, match=r"The input x has a dimension rows without bounds.*there are batch"):
        plan_of("vision", loose, "8.9")


def test_trtexec_is_told_all_of_it() -> None:
    plan = plan_of("llm", within(DIALOG, 2), "8.7", workspace_bytes=64 << 20, plugins=("engine/a.so", "engine/b.so"))
    words = command(plan)
    assert words[:4] == ["trtexec", "--onnx=model.onnx", "--saveEngine=engine.trt", "--skipInference"]
    assert "--stronglyTyped" in words
    assert [word for word in words if "Plugins" in word] == [
        "--staticPlugins=engine/a.so",
        "--staticPlugins=engine/b.so",
    ]
    assert "--memPoolSize=workspace:64M" in words
    assert "--timingCacheFile=engine.timing" in words
    first, second = words.index("--profile=0"), words.index("--profile=1")
    assert words[first + 3].startswith(
        "--maxShapes=input_ids:2x512,past_lengths:2,logit_positions:512,past_key.0:2x2x2048x8"
    )
    assert words[second + 3].startswith("--maxShapes=input_ids:2x1,")


def test_scripts_build_the_plan_on_the_device(tmp_path: Path) -> None:
    """The shell script runs the very command, in the stage's folder; the other one needs nothing of ours."""
    plan = plan_of("llm", within(DIALOG, 2), "8.7")
    (tmp_path / "engine.plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
    write_scripts(plan, tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "trtexec").write_text('#!/bin/sh\npwd > said\nprintf "%s\\n" "$@" >> said\n', encoding="utf-8")
    (tools / "trtexec").chmod(0o755)
    script = tmp_path / "engine" / "build_engine.sh"
    subprocess.run([script], env={"PATH": f"{tools}:/usr/bin:/bin"}, check=True, timeout=60)
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert said == [str(tmp_path.resolve()), *command(plan)[1:]]
    tree = ast.parse((tmp_path / "engine" / "build_engine.py").read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in modules if name and name.startswith("edgewright")}
    assert str(tmp_path) not in script.read_text(encoding="utf-8")
