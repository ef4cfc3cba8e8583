"""Targets, dialects, engines and platforms of other packages: the example works, and defects are named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import TEXT_GOLDENS
from edgewright.build.pipeline import Built, deploy
from edgewright.bundle import read_manifest, this_machine
from edgewright.cli import main
from edgewright.errors import (
    BundleError,
    EdgewrightError,
    GenerationError,
    PluginError,
    TargetMismatchError,
    UsageError,
)
from edgewright.plugins import DIALECTS, ENGINES, PLATFORMS, TARGETS
from edgewright.runtime.llm import LLM
from edgewright.runtime.sampling import SamplingParams
from edgewright.targets import find_target, target_names
from edgewright.targets.platform import find_platform
from plugin_packages import EXAMPLE, describe, install, one_module

LLAMA = TEXT_GOLDENS / "llama"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the example package is installed."""
    return install(EXAMPLE, tmp_path_factory.mktemp("plugins") / "site")


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder on the import path, for packages with defects."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    this_machine.cache_clear()
    yield folder
    this_machine.cache_clear()
    for name in [name for name in sys.modules if name.endswith("_module") and name.startswith("odd")]:
        del sys.modules[name]


def test_the_example_deploys_verifies_and_runs(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cli(*words: object) -> str:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    options = ["--target", "example", "--for", "example-board", "--no-verify"]
    this_machine.cache_clear()
    with monkeypatch.context() as installed:
        installed.syspath_prepend(str(site))
        assert "target    example" in cli("deploy", LLAMA, "-o", tmp_path / "b", *options)
        assert "  engine: passed" in cli("verify", tmp_path / "b", "--against", LLAMA)
        ids = cli("run", "--prompt-ids", "1,2,3", "--ids", "--max-tokens", "6", tmp_path / "b")
    this_machine.cache_clear()
    for name in [name for name in sys.modules if name.startswith("edgewright_example")]:
        del sys.modules[name]
    entry = read_manifest(tmp_path / "b").stages["llm"]
    assert (entry.dialect, entry.runtime, entry.engine) == ("example", "example", "stages/llm/engine.example")
    assert entry.machine is not None
    assert (entry.machine.engine, entry.machine.version) == ("example", "1.0.0")
    plain = LLM.load(deploy(LLAMA, tmp_path / "cpu", verify=False).path)
    told = plain.generate([1, 2, 3], max_tokens=6, sampling=SamplingParams(temperature=0.0)).all_tokens()
    assert list(map(int, ids.split())) == list(told)

    # Where the package isn't installed, and where another version of it is.
    with pytest.raises(TargetMismatchError, match=r"compiled with example 1\.0\.0, which is not installed here"):
        LLM.load(tmp_path / "b")
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "edgewright_example").symlink_to(site / "edgewright_example")
    opener = {ENGINES: {"example": "edgewright_example.engine:open_engine"}}
    describe(newer, "edgewright-example-target", "1.1.0", opener)
    monkeypatch.syspath_prepend(str(newer))
    this_machine.cache_clear()
    with pytest.raises(TargetMismatchError, match=r"The bundle was compiled with example 1\.0\.0, not 1\.1\.0"):
        LLM.load(tmp_path / "b")
    this_machine.cache_clear()


def test_the_tests_of_the_example_pass(site: Path, tmp_path: Path) -> None:
    words = ["-n", "0", "-x", "--rootdir", str(EXAMPLE), "--basetemp", str(tmp_path / "t"), str(EXAMPLE / "tests")]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Error" not in result.stdout


#: A back end of another package that is whole; what is inserted into it makes it wrong.
_BACKEND = """
from edgewright.bundle.manifest import StageEntry


class Plug:
    name = "odd"
    dialect = "onnx-qdq"
    options = {{}}

    def require(self, platform, options):
        pass

    def compile(self, work):
        (work.folder / "engine.odd").write_bytes(b"made")
        return StageEntry(
            f"{{work.prefix}}/model.onnx", "onnx-qdq", work.contract, {{}}, f"{{work.prefix}}/engine.odd", None, "odd"
        )

    def stand_in(self, root, entry, threads):
        return None

{change}


plug = Plug()
"""


def broken(site: Path, change: str) -> None:
    one_module(site, TARGETS, _BACKEND.format(change=change))


def build(folder: Path) -> Built:
    return deploy(LLAMA, folder, recipe="float32", target="odd", verify=False)


def test_a_whole_one_is_taken(odd: Path, tmp_path: Path) -> None:
    broken(odd, "")
    assert "odd" in target_names()
    built = build(tmp_path / "b")
    assert (built.path / "stages" / "llm" / "engine.odd").read_bytes() == b"made"
    with pytest.raises(
        TargetMismatchError, match="The bundle's stage runs on odd, for which nothing is installed here"
    ):
        LLM.load(built.path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("    def __getattribute__(self, n):\n        raise RuntimeError('boo')", "boo"),
        ("del Plug.compile, Plug.stand_in", "The target odd of the package odd-package lacks compile, stand_in"),
        ("    compile = 7", "has compile, which is no function"),
        ("    name = 'even'", "calls itself 'even'"),
        ("    dialect = None", "has a dialect that is no text"),
        ("    dialect = 'no-such'", "The dialect 'no-such' is unknown"),
        (
            "    def require(self, p, o):\n        return p.name",
            "when it was asked whether it can compile here (AttributeError:",
        ),
        (
            "    def compile(self, work):\n        1 / 0",
            "failed on the stage llm (ZeroDivisionError: division by zero)",
        ),
        ("    def compile(self, work):\n        return {}", "gives dict for a stage, where an entry is needed"),
        (
            "    def compile(self, work):\n"
            "        return StageEntry(f'{work.prefix}/model.onnx', 'portable', work.contract, {})",
            "gives an entry of another contract or dialect",
        ),
        (
            "    def compile(self, work):\n        return StageEntry('../x', 'onnx-qdq', work.contract, {})",
            "names the file '../x', which is not in the stage",
        ),
        (
            "    def compile(self, work):\n        (work.folder / 'mine').touch()\n"
            "        return StageEntry(f'{work.prefix}/model.onnx', 'onnx-qdq', work.contract, {})",
            "made, changed or removed stages/llm/mine, which is not of the engine of the stage llm",
        ),
        (
            "    def compile(self, work):\n        (work.root / 'sidecars' / 'mine').touch()\n"
            "        return StageEntry(f'{work.prefix}/model.onnx', 'onnx-qdq', work.contract, {})",
            "made, changed or removed sidecars/mine",
        ),
        (
            "    def compile(self, work):\n        (work.folder / 'model.onnx').write_bytes(b'x')\n"
            "        return StageEntry(f'{work.prefix}/model.onnx', 'onnx-qdq', work.contract, {})",
            "made, changed or removed stages/llm/model.onnx",
        ),
        (
            "    def compile(self, work):\n        (work.folder / 'engine.odd').symlink_to('/etc/hostname')\n"
            "        return StageEntry(f'{work.prefix}/model.onnx', 'onnx-qdq', work.contract, {})",
            "left 'stages/llm/engine.odd', which is no plain file with a plain name",
        ),
        *(
            (
                "    def compile(self, work):\n"
                f"        return StageEntry(f'{{work.prefix}}/model.onnx', 'onnx-qdq', work.contract, {rest})",
                sentence,
            )
            for rest, sentence in (
                ("{'a': object()}, runtime='odd'", "(TypeError: Object of type object is not JSON serializable)"),
                ("{}", "failed when its entry of the stage llm was written down (KeyError: 'optimization')"),
                ("7, runtime='odd'", "(TypeError: 'int' object is not iterable)"),
                ("{}, runtime=7", "(ValueError: the runtime 7)"),
                ("{}, machine='x', runtime='odd'", "(AttributeError: 'str' object has no attribute 'to_json')"),
                ("{}, engine=7, runtime='odd'", "names the file 7, which is not in the stage"),
                ("{}, engine='', runtime='odd'", "names the file '', which is not in the stage"),
            )
        ),
        (
            "    def decides(self, p, o):\n        return {'a': object()}",
            "when it was asked what decides over its work (TypeError: Object of type object is not JSON serializable)",
        ),
        ("    def decides(self, p, o):\n        return {'a': float('nan')}", "(ValueError: Out of range float values"),
        ("    options = {1: 'x'}", "has options that are not named and told in text"),
        ("    def require(self, p, o):\n        raise SystemExit(0)", "whether it can compile here (SystemExit: 0)"),
        ("import sys; sys.exit(0)", "The package odd-package, which brings odd, can't be imported (0)"),
        ("raise ImportError('no chip')", "The package odd-package, which brings odd, can't be imported (no chip)"),
        ("    this is no Python", "can't be imported"),
    ],
)
def test_defects_of_a_back_end_are_named(change: str, sentence: str, odd: Path, tmp_path: Path) -> None:
    broken(odd, change)
    with pytest.raises(EdgewrightError) as error:
        build(tmp_path / "b")
    assert isinstance(error.value, UsageError if "no-such" in change else PluginError)
    assert sentence in str(error.value)
    assert str(error.value).endswith(".")
    assert not (tmp_path / "b").exists()


def test_stand_ins_are_checked(odd: Path, tmp_path: Path) -> None:
    broken(odd, "    def stand_in(self, root, entry, threads):\n        return 'trust me'")
    built = build(tmp_path / "b")
    with pytest.raises(PluginError, match="gives as a stand-in what is no engine with a sentence"):
        find_target("odd").stand_in(built.path, built.manifest.stages["llm"], 1)


@pytest.mark.parametrize(
    ("bind", "sentence"),
    [
        ("def bind(self, i, o): 1 / 0", "The target odd of the package odd-package failed (ZeroDivisionError:"),
        ("def bind(self, i, o): pass", "gives NoneType where a function is needed"),
        ("bind = None", "gives E, which is no engine of this stage's contract with a function bind"),
    ],
)
def test_defects_of_a_stand_in_are_named(
    bind: str, sentence: str, odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(
        odd,
        "    def stand_in(self, root, entry, threads):\n        class E:\n            contract = entry.contract\n"
        f"            {bind}\n        return E(), 'Nothing is left.'",
    )
    words = ["deploy", str(LLAMA), "-o", str(tmp_path / "b"), "--target", "odd", "--recipe", "float32"]
    assert main(words) == 4
    assert sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("plug = 7", "The dialect odd of the package odd-package is no function"),
        ("def plug(stage):\n    return None", "gives NoneType, where a stage is needed"),
        (
            "def plug(stage):\n    return stage.no_such",
            "failed (AttributeError: 'Stage' object has no attribute 'no_such')",
        ),
        ("plugs = 7", "can't be imported"),
    ],
)
def test_defects_of_a_dialect_are_named(
    code: str, sentence: str, odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one_module(odd, DIALECTS, code)
    assert main(["export", str(LLAMA), "-o", str(tmp_path / "e"), "--dialect", "odd"]) == 4
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("code", "kind", "sentence"),
    [
        ("plug = 7", PluginError, "The engine odd of the package odd-package is no function"),
        (
            "def plug(folder, entry):\n    pass",
            PluginError,
            "failed (TypeError: plug() got an unexpected keyword argument",
        ),
        (
            "def plug(folder, entry, **more):\n    return 7",
            PluginError,
            "gives int, which is no engine of this stage's contract",
        ),
        (
            "class E:\n    contract = None\n    def bind(self, i, o): pass\n"
            "def plug(folder, entry, **more):\n    return E()",
            PluginError,
            "gives E, which is no engine of this stage's contract",
        ),
        (
            "class E:\n    contract = property(lambda self: 1 / 0)\n    def bind(self, i, o): pass\n"
            "def plug(folder, entry, **more):\n    return E()",
            PluginError,
            "failed when its engine was asked for its members (ZeroDivisionError: division by zero)",
        ),
        (
            "class E:\n    def bind(self, i, o): return 7\ndef plug(folder, entry, **more):\n"
            "    e = E(); e.contract = entry.contract; return e",
            PluginError,
            "gives int where a function is needed",
        ),
        (
            "class E:\n    def bind(self, i, o): return lambda: 1 / 0\ndef plug(folder, entry, **more):\n"
            "    e = E(); e.contract = entry.contract; return e",
            GenerationError,
            "The engine odd of the package odd-package failed (ZeroDivisionError: division by zero)",
        ),
        (
            "from edgewright.errors import BundleError\n"
            "def plug(folder, entry, **more):\n    raise BundleError('Not mine.')",
            BundleError,
            "Not mine.",
        ),
    ],
)
def test_defects_of_an_engine_are_named(
    code: str, kind: type[EdgewrightError], sentence: str, odd: Path, tmp_path: Path
) -> None:
    broken(odd, "")
    built = build(tmp_path / "b")
    one_module(odd, ENGINES, code, "odd-engine".replace("-", "_"))
    describe(odd, "odd-package-engine", "1.0", {})
    (odd / "odd_package-1.0.dist-info" / "entry_points.txt").write_text(f"[{ENGINES}]\nodd = odd_engine_module:plug\n")
    with pytest.raises(kind) as error:
        LLM.load(built.path).session().append([1, 2])
    assert sentence in str(error.value)


def test_an_engine_that_computes_nonsense_fails_the_verification(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "class E:\n    def bind(self, i, o):\n        def run():\n            for a in o.values(): a[...] = 1\n"
        "        return run\n"
        "def plug(folder, entry, **more):\n    e = E(); e.contract = entry.contract; return e\n"
    )
    (odd / "odd_engine_module.py").write_text(code)
    (odd / "odd_module.py").write_text(_BACKEND.format(change=""))
    describe(
        odd, "odd-package", "1.0", {TARGETS: {"odd": "odd_module:plug"}, ENGINES: {"odd": "odd_engine_module:plug"}}
    )
    assert main(["deploy", str(LLAMA), "-o", str(tmp_path / "b"), "--target", "odd", "--recipe", "float32"]) == 1
    assert "The build failed verification and was not kept" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "b").exists()


def test_platforms_of_packages(odd: Path) -> None:
    (odd / "odd_platforms").mkdir()
    (odd / "odd_platforms" / "__init__.py").touch()
    text = (EXAMPLE / "src" / "edgewright_example" / "platforms" / "example-board.yaml").read_text(encoding="utf-8")
    (odd / "odd_platforms" / "odd-board.yaml").write_text(text.replace("example-board", "odd-board"))
    describe(odd, "odd-package", "1.0", {PLATFORMS: {"odd": "odd_platforms"}})
    assert find_platform("odd-board").title == find_platform("odd-board-8gb").title == "Example board, 8 GB"
    (odd / "odd_package-1.0.dist-info" / "entry_points.txt").write_text(f"[{PLATFORMS}]\nodd = odd_platforms:__doc__\n")
    with pytest.raises(PluginError, match="The platforms odd of the package odd-package are no module with files"):
        find_platform("odd-board")


def test_two_packages_of_one_name(odd: Path) -> None:
    broken(odd, "")
    describe(odd, "even-package", "1.0", {TARGETS: {"odd": "other_module:plug"}})
    with pytest.raises(PluginError, match="Both even-package and odd-package bring the targets odd: uninstall one"):
        find_target("odd")


def test_unknown_targets_are_told_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"The target 'externl' is unknown; .*did you mean external\?"):
        find_target("externl")
