"""What an engine is refused for, each in one sentence: another machine, another compiler, another contract."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import TEXT_GOLDENS
from edgewright.build.pipeline import deploy
from edgewright.bundle import Machine, StageEntry, read_manifest, this_machine
from edgewright.bundle.machine import ENGINES
from edgewright.contract import StageContract, TensorContract
from edgewright.errors import BundleError, TargetMismatchError
from edgewright.runtime.engine import open_engine
from edgewright.runtime.engines.qnn import QnnEngine
from edgewright.runtime.llm import LLM

Opened = Callable[[StageContract], Any]
#: Engines that run on this machine's CPU, and the targets that compile for them.
TARGETS = {"onnxruntime": "cpu", "openvino": "openvino"}
HERE = this_machine()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function (engine) -> a bundle for it."""
    folder = tmp_path_factory.mktemp("engines")

    @functools.cache
    def make(engine: str) -> Path:
        return deploy(TEXT_GOLDENS / "llama", folder / engine, recipe="int8", target=TARGETS[engine], verify=False).path

    return make


def entry_of(folder: Path) -> StageEntry:
    return read_manifest(folder).stages["llm"]


def sentence(error: BaseException) -> str:
    """The error's text, which must be one sentence."""
    text = str(error)
    assert text.endswith(".")
    assert ". " not in text
    assert "\n" not in text
    return text


# -- another machine, another version ----------------------------------------------------------------------------------

MACHINES: dict[str, tuple[Callable[[Machine], Machine], str]] = {
    "architecture": (lambda m: dataclasses.replace(m, arch="riscv64"), "compiled for riscv64 and this is "),
    "feature that is gone": (
        lambda m: dataclasses.replace(m, features=(*m.features, "zz9")),
        "other CPU features (this CPU lacks zz9)",
    ),
    "feature that is new": (
        lambda m: dataclasses.replace(m, features=m.features[1:]),
        f"other CPU features (this CPU has {HERE.features[0]} besides)",
    ),
    "version": (lambda m: dataclasses.replace(m, version="0.1.2"), " 0.1.2, not "),
    "package": (
        lambda m: dataclasses.replace(m, engine="no-such-engine", version="7.1"),
        "compiled with no-such-engine 7.1, which is not installed here: install it, or ",
    ),
}


@pytest.mark.parametrize("engine", TARGETS)
@pytest.mark.parametrize("change", MACHINES)
def test_another_machine_or_version_is_refused(engine: str, change: str, bundle: Callable[[str], Path]) -> None:
    folder = bundle(engine)
    entry = entry_of(folder)
    assert entry.machine is not None
    assert entry.machine.engine == engine
    made, words = MACHINES[change]
    changed = dataclasses.replace(entry, machine=made(entry.machine))
    with pytest.raises(TargetMismatchError) as caught:
        open_engine(folder, changed)
    text = sentence(caught.value)
    assert words in text
    assert "compile it again here: edgewright compile BUNDLE -o NEW" in text
    if change == "version":
        assert f"compiled with {ENGINES[engine]} 0.1.2" in text
    assert open_engine(folder, changed, threads=1, check=False).contract == entry.contract
    assert open_engine(folder, entry, threads=1).contract == entry.contract


@pytest.mark.parametrize(("arch", "engine"), [("htp-v75", "qnn"), ("sm89", "tensorrt-rtx")])
def test_an_engine_of_another_platform_is_refused(arch: str, engine: str, bundle: Callable[[str], Path]) -> None:
    entry = entry_of(bundle("onnxruntime"))
    machine = Machine(arch, (), "1.0", engine)
    with pytest.raises(TargetMismatchError, match=f"compiled for {arch} and this is x86_64: ") as caught:
        machine.require(dataclasses.replace(this_machine(engine), arch="x86_64"))
    assert sentence(caught.value).endswith(": run it on its device, or deploy the model again for this machine.")
    if HERE.arch == "x86_64":
        with pytest.raises(TargetMismatchError, match=arch):
            open_engine(bundle("onnxruntime"), dataclasses.replace(entry, machine=machine))


def test_a_device_beside_a_processor_answers_for_itself() -> None:
    """An HTP is found where Arm processors are; its library refuses what was made for another one."""
    phone = Machine("aarch64", ("asimd", "i8mm"), "2.7.0", "qnn")
    Machine("htp-v75", (), "2.7.1", "qnn").require(phone)
    with pytest.raises(TargetMismatchError, match=r"QNN provider 2\.6\.0, not 2\.7\.0: compile it again"):
        Machine("htp-v75", (), "2.6.0", "qnn").require(phone)
    with pytest.raises(TargetMismatchError, match="not installed here"):
        Machine("htp-v75", (), "2.7.0", "qnn").require(dataclasses.replace(phone, version=""))


def test_patch_releases_are_the_same_version() -> None:
    dataclasses.replace(HERE, version="1.2.3").require(dataclasses.replace(HERE, version="1.2.9"))
    with pytest.raises(TargetMismatchError, match=r"ONNX Runtime 1\.2\.3, not 1\.3\.0"):
        dataclasses.replace(HERE, version="1.2.3").require(dataclasses.replace(HERE, version="1.3.0"))


@pytest.mark.parametrize("runtime", ["tensorrt", "tensorrt-edge-llm", "no-such-engine"])
def test_an_engine_that_nothing_here_runs(runtime: str, bundle: Callable[[str], Path]) -> None:
    entry = dataclasses.replace(entry_of(bundle("onnxruntime")), runtime=runtime, machine=None)
    with pytest.raises(TargetMismatchError, match=f"runs on {runtime}, for which nothing is installed here") as caught:
        open_engine(bundle("onnxruntime"), entry)
    sentence(caught.value)


# -- another contract --------------------------------------------------------------------------------------------------


def renamed(contract: StageContract) -> StageContract:
    first, *others = contract.inputs
    return dataclasses.replace(contract, inputs=(dataclasses.replace(first, name="ids"), *others))


def missing(contract: StageContract) -> StageContract:
    return dataclasses.replace(contract, inputs=tuple(t for t in contract.inputs if t.name != "logit_positions"))


def of_logits(**changes: Any) -> Callable[[StageContract], StageContract]:
    def change(contract: StageContract) -> StageContract:
        first, *others = contract.outputs
        return dataclasses.replace(contract, outputs=(dataclasses.replace(first, **changes), *others))

    return change


def more(contract: StageContract) -> StageContract:
    return dataclasses.replace(contract, outputs=(*contract.outputs, TensorContract("more", "float32", (1,))))


CONTRACTS: dict[str, tuple[Callable[[StageContract], StageContract], str]] = {
    "name": (renamed, "(ids, input_ids differ)"),
    "input": (missing, "(logit_positions differ)"),
    "output": (more, "(more differ)"),
    "dtype": (of_logits(dtype="float16"), "logits is float32 "),
    "size": (of_logits(shape=("batch", "positions", 98)), "where the manifest says float32 ['batch', 'positions', 98]"),
    "rank": (of_logits(shape=("positions", 97)), "where the manifest says float32 ['positions', 97]"),
}


@pytest.mark.parametrize("engine", TARGETS)
@pytest.mark.parametrize("change", CONTRACTS)
def test_another_contract_is_refused(engine: str, change: str, bundle: Callable[[str], Path]) -> None:
    folder = bundle(engine)
    entry = entry_of(folder)
    made, words = CONTRACTS[change]
    with pytest.raises(TargetMismatchError) as caught:
        open_engine(folder, dataclasses.replace(entry, contract=made(entry.contract)), threads=1)
    text = sentence(caught.value)
    assert words in text
    assert text.endswith(": compile the bundle again.")


@pytest.mark.parametrize("engine", TARGETS)
def test_the_file_of_another_bundle_is_refused(engine: str, bundle: Callable[[str], Path], tmp_path: Path) -> None:
    """An engine that was swapped fails by its digest, and without that check by its contract."""
    import shutil

    other = deploy(TEXT_GOLDENS / "qwen3", tmp_path / "other", recipe="int8", target=TARGETS[engine], verify=False).path
    mixed = Path(shutil.copytree(bundle(engine), tmp_path / "mixed"))
    for path in (other / "stages" / "llm").iterdir():
        shutil.copyfile(path, mixed / "stages" / "llm" / path.name)
    with pytest.raises(BundleError, match=r"instead of|was changed|copy the bundle again"):
        LLM.load(mixed, threads=1)
    with pytest.raises(TargetMismatchError, match="manifest"):
        LLM.load(mixed, threads=1, check=False)


def test_a_description_of_an_htp_engine_with_another_contract(bundle: Callable[[str], Path], tmp_path: Path) -> None:
    contract = entry_of(bundle("onnxruntime")).contract
    capacity = contract.bounds["capacity"][1]
    tensors = {
        f"past_{kind}_{index}_in": {"dtype": "uint8", "scale": 0.1, "offset": -3}
        for kind in ("key", "value")
        for index in range(len(contract.kv))
    }
    tensors["logits"] = {"dtype": "uint16", "scale": 0.1, "offset": -3}
    description: dict[str, Any] = {
        "context": capacity, "rows": 4, "tensors": tensors, "windows": {}, "parts": [], "soc": {}, "tables": {},
    }  # fmt: skip

    def opening(part: Any, kind: str) -> Any:
        raise AssertionError("nothing is opened")

    assert QnnEngine(tmp_path, description, contract, opening).contract is contract
    fewer = dict(list(tensors.items())[1:])
    for changed, words in (
        ({"tensors": fewer}, r"past_key_0_in differ"),
        ({"context": capacity + 1}, rf"context of {capacity + 1} where the manifest says {capacity}"),
    ):
        with pytest.raises(TargetMismatchError, match=words) as caught:
            QnnEngine(tmp_path, {**description, **changed}, contract, opening)
        sentence(caught.value)
