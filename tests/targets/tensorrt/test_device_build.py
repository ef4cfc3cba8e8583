"""The script that builds on the device: it does what the plan says, with whichever TensorRT is there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from edgewright.targets.tensorrt import device_build
from edgewright.targets.tensorrt.plan import Bounds, BuildPlan, Profile

PLAN = BuildPlan(
    "llm",
    "8.7",
    (Profile("context", {"x": Bounds((1, 1), (1, 8), (2, 8))}),),
    workspace_bytes=1 << 20,
    plugins=("engine/a.so", "engine/b.so"),
)


class Recorder:
    """A TensorRT that writes down what it is asked; `types` of the engine's tensors may be other than the network's."""

    def __init__(self, *, parses: bool = True, builds: bool = True, engine_type: str = "half") -> None:
        self.said: list[Any] = []
        recorder = self
        tensor = types.SimpleNamespace(name="x", dtype="half")
        network = types.SimpleNamespace(num_inputs=1, num_outputs=0, get_input=lambda index: tensor)
        profile = types.SimpleNamespace(set_shape=lambda *shapes: self.said.append(shapes))
        config = types.SimpleNamespace(
            clear_flag=lambda flag: self.said.append(f"clear {flag}"),
            set_memory_pool_limit=lambda pool, size: self.said.append((pool, size)),
            add_optimization_profile=lambda given: None,
            create_timing_cache=lambda data: self.said.append(("timings", data)),
            set_timing_cache=lambda cache, ignore_mismatch: None,
            get_timing_cache=lambda: types.SimpleNamespace(serialize=lambda: b"measured"),
        )
        error = types.SimpleNamespace(desc=lambda: "an op is unknown")
        inspector = types.SimpleNamespace(get_engine_information=lambda form: '{"Layers": []}')
        engine = types.SimpleNamespace(
            get_tensor_dtype=lambda name: engine_type, create_engine_inspector=lambda: inspector
        )
        builder = types.SimpleNamespace(
            create_network=lambda flags: self.said.append(("network", flags)) or network,
            create_builder_config=lambda: config,
            create_optimization_profile=lambda: profile,
            build_serialized_network=lambda *given: b"engine" if builds else None,
        )
        self.module = types.SimpleNamespace(
            Logger=lambda level: None,
            Builder=lambda log: builder,
            BuilderFlag=types.SimpleNamespace(TF32="TF32"),
            NetworkDefinitionCreationFlag=types.SimpleNamespace(STRONGLY_TYPED=1),
            ProfilingVerbosity=types.SimpleNamespace(DETAILED=1),
            MemoryPoolType=types.SimpleNamespace(WORKSPACE="workspace"),
            LayerInformationFormat=types.SimpleNamespace(JSON=1),
            Runtime=lambda log: types.SimpleNamespace(deserialize_cuda_engine=lambda data: engine),
            OnnxParser=lambda network, log: types.SimpleNamespace(
                parse_from_file=lambda path: recorder.said.append(Path(path).name) or parses,
                num_errors=1,
                get_error=lambda index: error,
            ),
        )
        self.module.Logger.WARNING = 1  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "engine.plan.json").write_text(json.dumps(PLAN.to_json()), encoding="utf-8")
    return tmp_path


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> int:
    monkeypatch.setitem(sys.modules, "tensorrt", recorder.module)
    loaded: list[str] = []
    monkeypatch.setattr(device_build.ctypes, "CDLL", lambda path, mode: loaded.append(Path(path).name))
    status = device_build.main(folder)
    assert loaded == ["a.so", "b.so"]
    return status


def test_it_does_what_the_plan_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    assert run(folder, monkeypatch, recorder) == 0
    assert (folder / "engine.timing").read_bytes() == b"measured"
    assert recorder.said == [
        ("network", 2),
        "model.onnx",
        "clear TF32",
        ("workspace", 1 << 20),
        ("x", (1, 1), (1, 8), (2, 8)),
        ("timings", b""),
    ]
    assert (folder / "engine.trt").read_bytes() == b"engine"
    assert json.loads((folder / "engine.layers.json").read_text(encoding="utf-8")) == {"Layers": []}


@pytest.mark.parametrize(
    ("recorder", "words"),
    [
        (Recorder(parses=False), "an op is unknown"),
        (Recorder(builds=False), "The engine was not built"),
        (Recorder(engine_type="float"), "x has another type in the engine"),
    ],
    ids=["parser", "builder", "types"],
)
def test_failures_are_told(
    recorder: Recorder, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, monkeypatch, recorder) == 1
    assert words in capsys.readouterr().err
    assert not (folder / "engine.trt").exists()


def test_what_was_measured_is_there_for_the_next_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    run(folder, monkeypatch, recorder)
    run(folder, monkeypatch, recorder)
    assert [said for said in recorder.said if said[0] == "timings"] == [("timings", b""), ("timings", b"measured")]


def test_files_that_the_plan_was_not_made_for_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "weights.bin").write_bytes(b"weights")
    plan = dataclasses.replace(PLAN, plugins=(), sha256={"weights.bin": hashlib.sha256(b"others").hexdigest()})
    for data in (b"weights", None):
        if data is None:
            (folder / "weights.bin").unlink()
        (folder / "engine.plan.json").write_text(json.dumps(plan.to_json()), encoding="utf-8")
        assert device_build.main(folder) == 1
        assert "weights.bin is not the file that the plan was made for" in capsys.readouterr().err


def test_without_tensorrt_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit, match="Neither tensorrt nor tensorrt_rtx"):
        device_build.main(folder)
