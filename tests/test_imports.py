"""Arrows point one way: which part of the package may import which, and what no part may use."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgewright

SOURCE = Path(edgewright.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

#: Modules everything may use; they use each other only.
BASE = frozenset(
    {"errors", "contract", "files", "locks", "nodes", "plugins", "progress", "quiet_ort", "yaml_text", "_version"}
)
#: What each part may import besides itself and BASE. A part that is not listed is an error: add it, with thought.
ALLOWED: dict[str, frozenset[str]] = {
    **dict.fromkeys(BASE, frozenset()),
    "__init__": frozenset({"runtime"}),
    "__main__": frozenset({"cli"}),
    "bundle": frozenset(),
    "runtime": frozenset({"bundle"}),
    "genie": frozenset(),
    "bench": frozenset({"bundle", "genie", "runtime"}),
    # Every page is made with its `template` and `charts`, which stand on nothing (there is a test).
    "report": frozenset({"bench", "runtime"}),
    "serve": frozenset({"bundle", "runtime"}),
    "formats": frozenset(),
    "checkpoint": frozenset({"formats", "runtime"}),
    "graph": frozenset(),
    "ops": frozenset({"graph"}),
    "nn": frozenset({"graph", "ops"}),
    "models": frozenset({"checkpoint", "formats", "graph", "nn", "ops", "runtime"}),
    "quant": frozenset({"formats", "graph", "ops"}),
    "dialects": frozenset({"formats", "graph", "ops", "quant"}),
    "targets": frozenset({"bundle", "dialects", "formats", "genie", "graph", "quant", "runtime"}),
    "quantizer": frozenset(
        {"bundle", "calibration", "checkpoint", "dialects", "formats", "graph", "models", "ops", "quant", "runtime",
         "report", "verify"}
    ),
    "build": frozenset(
        {"bundle", "calibration", "checkpoint", "dialects", "formats", "graph", "models", "nn", "ops", "quant",
         "quantizer", "runtime", "targets"}
    ),
    "plan": frozenset(
        {"bundle", "checkpoint", "formats", "graph", "models", "ops", "quant", "runtime", "targets"}
    ),
    # It runs bundles as the bench does, and its numbers stand beside the plan's.
    "profile": frozenset({"bench", "bundle", "plan", "report", "runtime", "targets"}),
    "calibration": frozenset({"bundle", "checkpoint", "runtime"}),
    "verify": frozenset(
        {"bundle", "checkpoint", "dialects", "formats", "graph", "models", "nn", "ops", "quant", "report", "runtime",
         "targets"}
    ),
    "evaluate": frozenset({"bundle", "checkpoint", "report", "runtime", "serve", "verify"}),
    "cli": frozenset(
        {"bench", "build", "bundle", "calibration", "checkpoint", "dialects", "evaluate", "formats", "genie", "graph",
         "models", "nn", "ops", "plan", "profile", "quant", "quantizer", "report", "runtime", "serve", "targets",
         "verify"}
    ),
}  # fmt: skip
#: Imports that are allowed inside a function only: a build ends with a verification, and the verifier knows no build.
LAZY = {"build": frozenset({"verify"})}

#: The parts that run on the device, and all that they may import from outside.
DEVICE = BASE | {"bundle", "runtime", "bench", "genie", "__init__"}
DEVICE_PACKAGES = frozenset({"numpy", "onnxruntime", "tokenizers", "jinja2"})
#: A device-side module's packages that are imported inside a function only: without them it says what can't be read.
LAZY_PACKAGES = {"nodes": frozenset({"yaml"})}
#: Engines' own packages, each imported by the engine's module alone, inside a function.
ENGINE_PACKAGES = {
    "runtime/engines/openvino.py": frozenset({"openvino"}),
    "runtime/engines/qnn.py": frozenset({"onnxruntime_qnn"}),
    "targets/tensorrt/rtx.py": frozenset({"tensorrt_rtx_bindings"}),
}
#: Packages that compile, each imported by the modules of its target's folder, which the back end loads to compile.
COMPILER_PACKAGES = {"targets/openvino": frozenset({"openvino"})}
SERVE_PACKAGES = frozenset({"numpy", "websockets", "msgpack"})
#: What the host side may import besides (the extras `host` and `ray`; `google` is protobuf, which comes with onnx).
HOST_PACKAGES = DEVICE_PACKAGES | {
    "onnx",
    "onnx_ir",
    "ml_dtypes",
    "yaml",
    "tqdm",
    "google",
    "PIL",
    "ray",
    "pyarrow",
    "av",
    "gymnasium",
    "mujoco",
    "matplotlib",
}


def part_of(path: Path) -> str:
    """The top-level part a module belongs to."""
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield (dotted name, whether it is inside a function) of everything a module imports but for type checkers."""
    package = ["edgewright", *path.relative_to(SOURCE).parts[:-1]]

    def walk(node: ast.AST, lazy: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = ".".join([*package[: len(package) - child.level + 1], child.module or ""]) if child.level else ""
                module = (base or child.module or "").rstrip(".")
                yield from ((f"{module}.{alias.name}", lazy) for alias in child.names)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, lazy or inside)

    yield from walk(parsed(path), False)


def named(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_every_part_is_in_the_table() -> None:
    parts = {part_of(path) for path in MODULES}
    assert parts <= ALLOWED.keys(), f"not in the table: {parts - ALLOWED.keys()}"
    assert {"graph", "models", "runtime", "verify"} <= parts


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_imports_follow_the_arrows(path: Path) -> None:
    part = part_of(path)
    wrong = []
    for name, lazy in imports(path):
        pieces = name.split(".")
        if pieces[0] != "edgewright" or len(pieces) < 2:
            continue
        target = pieces[1]
        if target == "__version__" or target in BASE or target == part:
            continue
        if target == "LLM":
            target = "runtime"
        allowed = ALLOWED[part] | (LAZY.get(part, frozenset()) if lazy else frozenset())
        if target not in allowed:
            wrong.append(name)
    assert not wrong, f"{named(path)} ({part}) may not import {', '.join(wrong)}"


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_packages_from_outside(path: Path) -> None:
    part = part_of(path)
    allowed = DEVICE_PACKAGES if part in DEVICE else SERVE_PACKAGES if part == "serve" else HOST_PACKAGES
    found = {(name.split(".")[0], lazy) for name, lazy in imports(path)}
    lazily = {(name, True) for name in (*LAZY_PACKAGES.get(part, ()), *ENGINE_PACKAGES.get(named(path), ()))}
    allowed |= COMPILER_PACKAGES.get(named(path).rsplit("/", 1)[0], frozenset())
    outside = {name for name, _ in found - lazily} - sys.stdlib_module_names - {"edgewright"}
    assert outside <= allowed, f"{named(path)} imports {', '.join(sorted(outside - allowed))}"


FORBIDDEN_MODULES = frozenset({"pickle", "cPickle", "dill", "shelve", "marshal", "torch", "transformers"})


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_nothing_dangerous(path: Path) -> None:
    """No pickle, no code from text, no shell, no remote code, no pickled arrays."""
    found = [name for name, _ in imports(path) if name.split(".")[0] in FORBIDDEN_MODULES]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id in ("eval", "exec", "__import__"):
                found.append(f"{function.id}() in line {node.lineno}")
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                called = f"{function.value.id}.{function.attr}"
                if called in ("os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load"):
                    found.append(f"{called}() in line {node.lineno}")
            for keyword in node.keywords:
                on = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                if keyword.arg in ("shell", "allow_pickle") and on:
                    found.append(f"{keyword.arg}=True in line {node.lineno}")
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg == "trust_remote_code" and not off:
                    found.append(f"trust_remote_code in line {node.lineno}")
        if isinstance(node, ast.Constant) and node.value == "trust_remote_code":
            found.append(f"trust_remote_code in line {node.lineno}")
    assert not found, f"{named(path)}: {', '.join(found)}"


def test_the_templates_of_pages_stand_on_nothing() -> None:
    """Other parts may import `report` for its templates; these must not bring the bench with them."""
    for name in ("__init__", "template", "charts"):
        for imported, _ in imports(SOURCE / "report" / f"{name}.py"):
            pieces = imported.split(".")
            assert pieces[0] != "edgewright" or pieces[1] in BASE or pieces[1:3] == ["report", "charts"], imported


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    return set(output.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"numpy", "onnx", "onnxruntime", "onnx_ir", "yaml", "tokenizers", "jinja2", "ml_dtypes", "tqdm"}
    assert not loaded_after("import edgewright; edgewright.__version__") & heavy


def test_onnx_runtime_reports_nothing() -> None:
    """One module imports it and switches its reporting off; all others take it from there."""
    direct = {named(path) for path in MODULES for name, _ in imports(path) if name.split(".")[0] == "onnxruntime"}
    assert direct == {"quiet_ort.py"}
    calls = [ast.unparse(node) for node in parsed(SOURCE / "quiet_ort.py").body if isinstance(node, ast.Expr)]
    assert "ort.disable_telemetry_events()" in calls


def test_the_device_side_loads_nothing_of_the_host_side() -> None:
    loaded = loaded_after(
        "from edgewright import LLM; assert not {m for m in sys.modules if m.startswith('edgewright.quant')}"
    )
    assert "numpy" in loaded
    assert not loaded & {"onnxruntime", "onnx", "onnx_ir", "ml_dtypes", "yaml", "tqdm", "torch"}


def test_the_public_names() -> None:
    assert sorted(edgewright.__all__) == ["LLM", "SamplingParams", "__version__"]
    assert edgewright.LLM.__module__ == "edgewright.runtime.llm"
    with pytest.raises(AttributeError, match="has no attribute 'VLM'"):
        _ = edgewright.VLM
