"""Tool files: those that ship are whole, and every mistake in one is named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgewright.errors import UsageError
from edgewright.targets.external.template import Port, Values
from edgewright.targets.external.tool import Tool, find_tool, tool_names
from edgewright.targets.platform import shipped_platforms
from external_tools import tool_file

INPUTS = (Port("a", "float32", (1, 3, 8), "calibration/a"), Port("b.0", "int64", (4,), "calibration/b.0"))


def values_of(tool: Tool, **options: str) -> Values:
    plain = dict.fromkeys(("work", "platform"), "")
    plain |= {"model": "model.onnx", "weights": "weights.bin", "output": "output", "stage": "vision"}
    plain |= {"calibration": "calibration", "samples": "calibration/samples.txt"}
    given = {name: option.default for name, option in tool.options.items()} | options
    return Values(plain, given, tool.lists, {"inputs": INPUTS, "outputs": INPUTS[:1]})


def test_those_that_ship() -> None:
    assert tool_names() == ("hb_compile", "hb_mapper", "qairt-converter", "qnn-onnx-converter", "tvm", "tvmc")
    for name in tool_names():
        tool = find_tool(name)
        assert tool.platforms.keys() <= shipped_platforms().keys()
        assert tool.package
        assert tool.version is not None
        for command in tool.commands:
            assert "{" not in " ".join(values_of(tool).words(command))
        for text in tool.files.values():
            assert values_of(tool).filled(text).endswith("\n")


def test_the_script_that_compiles_with_tvm_is_python() -> None:
    tool = find_tool("tvm")
    (text,) = tool.files.values()
    compile(values_of(tool).filled(text), "compile_stage.py", "exec")
    assert values_of(tool).words(tool.commands[0]) == [
        *("python3", "compile_stage.py", "model.onnx", "output/vision.so", "llvm")
    ]


def test_horizon_is_given_a_configuration() -> None:
    tool = find_tool("hb_compile")
    values = values_of(tool, march="nash-m")
    assert values.words(tool.commands[0]) == ["hb_compile", "--config", "config.yaml"]
    assert values.filled(tool.files["config.yaml"]).splitlines() == [
        "model_parameters:",
        "  onnx_model: 'model.onnx'",
        "  march: 'nash-m'",
        "  working_dir: 'output'",
        "  output_model_file_prefix: 'vision'",
        "input_parameters:",
        "  input_name: 'a;b.0'",
        "  input_shape: '1x3x8;4'",
        "  input_type_rt: 'featuremap;featuremap'",
        "  input_type_train: 'featuremap;featuremap'",
        "calibration_parameters:",
        "  cal_data_dir: 'calibration/a;calibration/b.0'",
        "compiler_parameters:",
        "  compile_mode: 'latency'",
        "  optimize_level: 'O2'",
        "  jobs: 2",
    ]


def test_words_stand_once_for_each_input() -> None:
    tool = find_tool("qairt-converter")
    assert values_of(tool).words(tool.commands[0])[-6:] == [
        *("--source_model_input_shape", "a", "1,3,8"),
        *("--source_model_input_shape", "b.0", "4"),
    ]
    tvm = find_tool("tvmc")
    assert "a:[1,3,8] b.0:[4]" in values_of(tvm).words(tvm.commands[0])


def test_values_are_not_looked_through_again(tmp_path: Path) -> None:
    tool = find_tool(
        str(tool_file(tmp_path / "t.yaml", commands=[["cc", "{{{option:x}}}"]], options={"x": {"default": "{model}"}}))
    )
    assert values_of(tool).words(tool.commands[0]) == ["cc", "{{model}}"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"title": ...}, "a tool needs title as well"),
        ({"comands": []}, "unknown key 'comands'; did you mean commands?"),
        ({"commands": []}, "there must be commands"),
        ({"commands": [[]]}, "a command begins with the name of a program"),
        ({"commands": [["{model}"]]}, "a command begins with the name of a program"),
        ({"commands": [["cc", "{modle}"]]}, "the placeholder '{modle}' is unknown; known are {model}, {weights}"),
        ({"commands": [["cc", "{option:x}"]]}, "the placeholder '{option:x}' is unknown"),
        ({"commands": [["cc", "a{b"]]}, "a brace stands alone in 'a{b'"),
        (
            {"commands": [["cc", {"each": "nodes", "words": ["x"]}]]},
            "each 'nodes' is unknown; known are inputs, outputs",
        ),
        (
            {"commands": [["cc", {"each": "inputs", "words": ["{model}"]}]]},
            "known are {name}, {shape}, {dtype}, {folder}",
        ),
        ({"commands": ["cc {model}"]}, "a command is a list of words"),
        ({"files": {"../x": "y"}}, "the file '../x' must have a plain name"),
        ({"files": {"model.onnx": "y"}}, "none of model.onnx, weights.bin"),
        ({"files": {"x": "{nothing}"}}, "the placeholder '{nothing}' is unknown"),
        ({"products": ["/etc/*"]}, "'/etc/*' can't be one"),
        ({"products": ["output/../../*"]}, "'output/../../*' can't be one"),
        ({"products": ["weights.bin"]}, "'weights.bin' can't be one"),
        ({"version": {"command": ["cc"], "pattern": "version"}}, "the pattern needs a group"),
        ({"errors": "("}, "'(' is no regular expression"),
        ({"runtime": "My Chip"}, "runtime must be made of lower-case letters"),
        ({"success": [256]}, "an exit code must be a whole number from 0 to 255"),
        ({"timeout_s": 0}, "timeout_s must be a number from 0.1"),
        ({"opset": 9}, "opset must be a whole number from 18 to 24"),
        ({"shapes": {"seq": 0}}, "the size of seq must be a whole number from 1"),
        ({"options": {"x": {}}}, "an option needs a default"),
        ({"options": {"x": {"default": "a", "values": ["b"]}}}, "the default 'a' is unknown; known are b"),
        ({"platforms": {"sa8255p": {"y": "1"}}, "options": {"x": {"default": "1"}}}, "unknown key 'y'"),
        ({"environment": {"A-B": "1"}}, "a variable must be named in letters"),
        ({"calibration": {"format": "txt"}}, "the format 'txt' is unknown; known are npy, raw"),
        ({"lists": {"l": {"of": "inputs"}}}, "a list needs item as well"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = tool_file(tmp_path / "bad.yaml", **changes)
    with pytest.raises(UsageError) as error:
        find_tool(str(path))
    assert sentence in str(error.value)
    assert str(error.value).startswith("bad.yaml:")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"The tool 'hb_compil' is unknown; .*did you mean hb_compile\? Or"):
        find_tool("hb_compil")
    with pytest.raises(UsageError, match="can't be read"):
        find_tool(str(tmp_path / "none.yaml"))
    (tmp_path / "big.yaml").write_bytes(b"#" * 70_000)
    with pytest.raises(UsageError, match="too large to be a tool file"):
        find_tool(str(tmp_path / "big.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"title: \xff")
    with pytest.raises(UsageError, match="no UTF-8 text"):
        find_tool(str(tmp_path / "latin.yaml"))
    (tmp_path / "Big Name.yaml").write_text("title: x")
    with pytest.raises(UsageError, match="a tool is named after its file"):
        find_tool(str(tmp_path / "Big Name.yaml"))
