"""Makes `tests/goldens/edgellm`: what NVIDIA's exporter of TensorRT Edge-LLM writes for tiny checkpoints.

Run it with the development environment, and give it the exporter's own (`requirements-edgellm.txt`, 1.8 GB):
python tools/goldens/make_edgellm.py EDGELLM_ENVIRONMENT [CASE ...]    # 4 min

Kept are facts alone: nodes with attributes and the digests of their weights, inputs and outputs, `config.json`, the
names of the files beside it and the digests of the embedding table; what the exporter's schemas say of each op; and
the digests of packed int4 weights. Float checkpoints are rounded to float16 first, which the exporter asks of biases.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from edgellm_cases import (  # noqa: E402
    CASES,
    EDGELLM,
    LAYOUT_SIZES,
    OTHERS,
    TOKENIZER,
    Case,
    checkpoint_of,
    layout_codes,
    write_golden,
)
from edgellm_form import describe  # noqa: E402

#: What is asked of the exporter's own Python: its schemas, and its packing of codes.
_SCHEMAS = """
import json, sys
import onnx
from tensorrt_edgellm.onnx import onnx_custom_schemas
onnx_custom_schemas.register_tensorrt_edgellm_onnx_custom_schemas()
names = [(d, n) for d, n in json.load(sys.stdin)]
def told(d, n):
    s = onnx.defs.get_schema(n, max_inclusive_version=99, domain=d)
    option = onnx.defs.OpSchema.FormalParameterOption
    return {"inputs": [[i.name, i.option == option.Optional, i.type_str] for i in s.inputs],
            "outputs": [[o.name, o.type_str] for o in s.outputs],
            "attributes": {a.name: [a.type.name, a.required] for a in s.attributes.values()},
            "types": {c.type_param_str: sorted(c.allowed_type_strs) for c in s.type_constraints}}
print(json.dumps({f"{d}::{n}": told(d, n) for d, n in names}))
"""
_PACKED = """
import hashlib, json, sys
import numpy as np
from tensorrt_edgellm.checkpoint import repacking
found = {}
for name in json.load(sys.stdin):
    codes = np.load(name).astype(np.int16)
    first = repacking._pack_intweights(codes)
    second = repacking.repack_to_cutedsl_fragment(codes)
    found["x".join(map(str, codes.shape))] = {
        "first": hashlib.sha256(first.tobytes()).hexdigest(), "second": hashlib.sha256(second.tobytes()).hexdigest(),
        "shape": list(second.shape)}
print(json.dumps(found))
"""
_OPS = (
    *(("trt_edgellm", n) for n in ("AttentionPlugin", "Int4GroupwiseGemmPlugin", "Int4GroupwiseGemmPluginV2")),
    *(("trt_edgellm", n) for n in ("QkvConcatPlugin", "ViTAttentionPlugin", "Nvfp4A16GemmPlugin")),
    *(("trt", n) for n in ("TRT_FP4DynamicQuantize", "DequantizeLinear")),
    *(("trt", n) for n in ("TRT_MXFP8DynamicQuantize", "TRT_MXFP8DequantizeLinear")),
)


def main() -> None:
    """Make all cases, or those that are named."""
    environment, wanted = Path(sys.argv[1]), sys.argv[2:]
    python = environment / "bin" / "python"
    for case in (*CASES, *OTHERS):
        if not wanted or case.name in wanted:
            write_golden(case.name, exported(environment, case))
            print(case.name, flush=True)
    if not wanted:
        write_golden("schemas", asked(python, _SCHEMAS, _OPS))
        write_golden("layouts", packed(python))
        version = "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in ('tensorrt-edgellm', "
        version += "'torch', 'transformers', 'onnx', 'onnxscript')), sep='\\n')"
        found = subprocess.run([python, "-c", version], check=True, capture_output=True, text=True).stdout
        (EDGELLM / "versions.txt").write_text(found)


def asked(python: Path, script: str, question: Any) -> Any:
    """Return a script's answer."""
    text = json.dumps(question)
    found = subprocess.run([python, "-c", script], input=text, check=True, capture_output=True, text=True).stdout
    return json.loads(found.splitlines()[-1])


def packed(python: Path) -> Any:
    """Return the digests of packed codes."""
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / f"{rows}x{width}.npy" for rows, width in LAYOUT_SIZES]
        for path, size in zip(paths, LAYOUT_SIZES, strict=True):
            np.save(path, layout_codes(*size))
        return asked(python, _PACKED, [str(path) for path in paths])


def exported(environment: Path, case: Case) -> dict[str, Any]:
    """Export a checkpoint and return what is kept of it."""
    with tempfile.TemporaryDirectory() as name:
        checkpoint, out = Path(name) / "checkpoint", Path(name) / "out"
        source = checkpoint_of(case, Path(name) / "made")
        shutil.copytree(source, checkpoint)
        for file in TOKENIZER.glob("tokenizer*.json"):
            shutil.copy(file, checkpoint)
        if case.recipe == "float16":
            tensors = load_file(checkpoint / "model.safetensors")
            save_file({n: t.astype(np.float16) for n, t in tensors.items()}, checkpoint / "model.safetensors")
        command = [environment / "bin" / "tensorrt-edgellm-export", checkpoint, out]
        command += ["--int4-gemm-plugin-version", str(case.plugin), *case.flags]
        subprocess.run(command, check=True, capture_output=True)
        table = load_file(out / "llm" / "embedding.safetensors")
        return describe(out / "llm" / "model.onnx") | {
            "config": json.loads((out / "llm" / "config.json").read_text()),
            "files": sorted(path.name for path in (out / "llm").iterdir()),
            "embedding": {n: [str(t.dtype), list(t.shape), digest(t)] for n, t in table.items()},
            "tokenizer_config": json.loads((out / "llm" / "tokenizer_config.json").read_text()),
        }


def digest(array: np.ndarray) -> str:
    """Return the digest of an array's bytes."""
    return hashlib.sha256(array.tobytes()).hexdigest()


if __name__ == "__main__":
    main()
