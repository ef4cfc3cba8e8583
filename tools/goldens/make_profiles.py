"""Write tests/goldens/profiles/: what engines say of the time their layers took, small and real where that can be made.

    python make_profiles.py ort      # ONNX Runtime: the golden llama's bundle, 7 tokens and two of decode
    python make_profiles.py qnn      # ONNX Runtime's QNN provider (onnxruntime-qnn), one product in its HTP simulator

The two run in the project's own environment. Of ONNX Runtime's events only what a reader looks at is kept, and process
and thread are 1. trtexec needs a GPU, so `trtexec_*.json` are written by hand, in the layout that NVIDIA/TensorRT's
samples/common/sampleReporting.cpp prints and the engine inspector gives with `--profilingVerbosity=detailed`.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "goldens" / "profiles"
KEPT = ("op_name", "node_index", "parameter_size", "output_type_shape")


def make_ort() -> None:
    """Profile a session over the golden llama."""
    from edgewright.build.pipeline import deploy
    from edgewright.bundle import read_manifest
    from edgewright.bundle.settings import EngineSettings
    from edgewright.runtime.engine import model_file
    from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
    from edgewright.runtime.session import Session

    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle"
        deploy(ROOT / "tests" / "goldens" / "text" / "llama", bundle, recipe="float32", verify=False)
        entry = read_manifest(bundle).stages["llm"]
        settings = EngineSettings.from_json(entry.settings)
        engine = OnnxRuntimeEngine(
            model_file(bundle, entry), entry.contract, settings, threads=1, profile=Path(scratch) / "profile"
        )
        session = Session(engine)
        session.append(list(range(1, 8)))
        for token in (8, 9):
            session.append([token])
        events = json.loads(Path(engine.session.end_profiling()).read_text(encoding="utf-8"))
    lines = ",\n".join(json.dumps(reduced(event), separators=(",", ":")) for event in events)
    (OUT / "ort.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def reduced(event: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of an event; shapes are those of nodes with weights."""
    kept = KEPT if event["args"].get("parameter_size", "0") != "0" else KEPT[:2]
    return {
        **{key: event[key] for key in ("cat", "ph", "name", "ts", "dur")},
        "pid": 1,
        "tid": 1,
        "args": {key: event["args"][key] for key in kept if key in event["args"]},
    }


def make_qnn() -> None:
    """Profile a product of uint16 activations and int8 weights in the HTP simulator, three times."""
    import onnx
    import onnxruntime as ort
    import onnxruntime_qnn as qnn
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    module = "model.layers.0.mlp.up_proj/Linear"
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["x_float"], name="input/dq"),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_float"], name=f"{module}/dq"),
        helper.make_node("MatMul", ["x_float", "w_float"], ["y_float"], name=module),
        helper.make_node("QuantizeLinear", ["y_float", "x_scale", "x_zero"], ["y"], name="output/q"),
    ]
    constants = {
        "x_scale": np.float32(0.001), "x_zero": np.uint16(32768), "w_scale": np.float32(0.001), "w_zero": np.int8(0),
        "w": rng.integers(-100, 100, (32, 16)).astype(np.int8),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT16, [1, 4, 32])],
        [helper.make_tensor_value_info("y", TensorProto.UINT16, [1, 4, 16])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    ort.register_execution_provider_library("qnn", qnn.get_library_path())
    device = next(device for device in ort.get_ep_devices() if device.ep_name == "qnn")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "profile.csv"
        options = ort.SessionOptions()
        provider = {
            "backend_path": qnn.get_qnn_htp_path(), "soc_model": "57", "htp_arch": "75",
            "profiling_level": "detailed", "profiling_file_path": str(path),
        }  # fmt: skip
        options.add_provider_for_devices([device], provider)
        session = ort.InferenceSession(model.SerializeToString(), options)
        for _ in range(3):
            session.run(None, {"x": rng.integers(0, 65535, (1, 4, 32)).astype(np.uint16)})
        del session
        (OUT / "qnn.csv").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    {"ort": make_ort, "qnn": make_qnn}[sys.argv[1]]()
