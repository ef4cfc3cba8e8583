"""The back end of TensorRT without a builder: what a GPU lacks, and what the stand-in reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from edgewright.dialects import tensorrt
from edgewright.errors import BundleError, UnsupportedFormatError, UsageError
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.targets.backend import StageWork
from edgewright.targets.tensorrt import BACKEND
from edgewright.targets.tensorrt.emulate import EmulatedEngine, emulated
from tensorrt_cases import checkpoint_of, stage_in


@pytest.mark.parametrize(
    ("recipe", "lacks", "has", "words"),
    [
        (
            "fp8 cache",
            "8.6",
            "8.9",
            r"past_key\.0 has numbers of the type FLOAT8E4M3FN, .* from compute capability 8\.9",
        ),
        ("mxfp8", "8.9", "10.0", r"q_proj.* has numbers of the type FLOAT8E8M0, .* from compute capability 10\.0"),
        ("nvfp4", "8.9", "12.0", r"has numbers of the type FLOAT4E2M1, .* from compute capability 10\.0"),
        ("bfloat16", "7.5", "8.0", r"has numbers of the type BFLOAT16, .* from compute capability 8\.0"),
        ("int8 cache", "", "7.5", ""),
    ],
)
def test_what_a_gpu_lacks_is_refused_wherever_it_is(
    recipe: str, lacks: str, has: str, words: str, tmp_path: Path
) -> None:
    """In weights, in caches, and in ops whose scales are stored as bytes."""
    lowered = tensorrt.lower(stage_in(checkpoint_of(recipe)))
    write_stage(lowered, tmp_path / "s")

    def compiled(capability: str) -> None:
        BACKEND.compile(
            StageWork("s", tmp_path, "s", lowered.contract, options={"builder": "script", "capability": capability})
        )

    compiled(has)
    if lacks:
        with pytest.raises(UnsupportedFormatError, match=words):
            compiled(lacks)


def test_a_batch_that_a_stage_does_not_take_is_refused(tmp_path: Path) -> None:
    """The default is cut to what there is; what is asked for is not."""
    lowered = tensorrt.lower(stage_in(checkpoint_of("float16")))
    write_stage(lowered, tmp_path / "s")
    contract = replace(lowered.contract, bounds={**lowered.contract.bounds, "batch": (1, 3)})
    options = {"builder": "script", "capability": "8.9"}
    for asked, made in (({}, 3), ({"batch": "2"}, 2)):
        entry = BACKEND.compile(StageWork("s", tmp_path, "s", contract, options={**options, **asked}))
        assert entry.contract.bounds["batch"] == (1, made)
    with pytest.raises(UsageError, match="batch=4 is more than the stage s takes at once, which is 3"):
        BACKEND.compile(StageWork("s", tmp_path, "s", contract, options={**options, "batch": "4"}))


def test_the_stand_in_reads_no_weights_elsewhere(tmp_path: Path) -> None:
    """A graph that names a file outside of the stage's folder is refused, for codes that are unpacked here, too."""
    lowered = tensorrt.lower(stage_in(checkpoint_of("nvfp4")))
    write_stage(lowered, tmp_path / "s")
    path = tmp_path / "s" / MODEL_FILE
    model = onnx.load(path, load_external_data=False)
    (tmp_path / "secret.bin").write_bytes((tmp_path / "s" / "weights.bin").read_bytes())
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT4E2M1:
            next(entry for entry in tensor.external_data if entry.key == "location").value = "../secret.bin"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(BundleError, match="outside the bundle"):
        EmulatedEngine(path, lowered.contract)


def test_ops_inside_of_a_loop_are_spelled_out(tmp_path: Path) -> None:
    """A loop that rounds its state to FP4 once per turn is emulated as the same rounding outside of one."""
    text = """<ir_version: 10, opset_import: ["" : 24, "trt" : 1]>
    looped (float[2, 32] x, int64 n, bool go) => (float[2, 32] y)
    <float whole = {0.25}> {
      y = Loop (n, go, x) <body = once (int64 i, bool c, float[2, 32] state) => (bool c_out, float[2, 32] out) {
        c_out = Identity (c)
        codes, scales = trt.TRT_FP4DynamicQuantize <axis = -1, block_size = 16, scale_type = 17> (state, whole)
        steps = DequantizeLinear (scales, whole)
        out = DequantizeLinear <axis = -1, block_size = 16> (codes, steps)
      }>
    }"""
    model = onnx.parser.parse_model(text)
    for number, node in enumerate(model.graph.node[0].attribute[0].g.node):
        node.name = f"n{number}"
    emulated(model, tmp_path)
    x = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)
    run = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run
    got = run(None, {"x": x, "n": np.array(1), "go": np.array(True)})[0]
    blocks = x.reshape(2, 2, 16)
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    for block, rounded in zip(blocks.reshape(-1, 16), got.reshape(-1, 16), strict=True):
        scale = np.float32(np.abs(block).max() / (0.25 * 6)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * 0.25
        wanted = np.sign(block) * grid[np.abs(np.abs(block)[:, None] / scale - grid).argmin(1)] * scale
        np.testing.assert_allclose(rounded, wanted, rtol=1e-6)
