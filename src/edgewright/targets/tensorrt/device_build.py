"""Builds the engine of this stage on the device, as the plan beside its graph says: python build_engine.py

It needs nothing but TensorRT's own Python package, and is copied as it is into bundles that are built elsewhere.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

PLAN, LAYERS = "engine.plan.json", "engine.layers.json"


def main(folder: Path) -> int:
    """Build `folder`'s engine, check it against the plan, and write what its layers are; returns the exit status."""
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    for name, digest in (plan["sha256"] or {}).items():
        if sha256_of(folder / name) != digest:
            print(f"{name} is not the file that the plan was made for: copy the bundle again.", file=sys.stderr)
            return 1
    trt = module()
    log = trt.Logger(trt.Logger.WARNING)
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(log, "")
    for name in plan["plugins"]:
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    builder = trt.Builder(log)
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(folder / plan["graph"])):
        for index in range(parser.num_errors):
            print(parser.get_error(index).desc(), file=sys.stderr)
        return 1
    config = config_of(trt, builder, plan, folder)
    data = builder.build_serialized_network(network, config)
    if data is None:
        print("The engine was not built; TensorRT's reasons stand above.", file=sys.stderr)
        return 1
    timings = config.get_timing_cache()
    if timings is not None:
        (folder / plan["timing_cache"]).write_bytes(memoryview(timings.serialize()))
    if check(trt, log, network, data, folder):
        return 1
    (folder / plan["engine"]).write_bytes(memoryview(data))
    return 0


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256 in hex; empty where there is none."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def module() -> Any:
    """Return TensorRT's Python module, that of TensorRT for RTX where the classic one isn't installed."""
    for name in ("tensorrt", "tensorrt_rtx"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise SystemExit("Neither tensorrt nor tensorrt_rtx is installed: install TensorRT's Python package.")


def config_of(trt: Any, builder: Any, plan: dict[str, Any], folder: Path) -> Any:
    """Return the builder's configuration: profiles, scratch memory, timing cache."""
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)
    if plan["workspace_bytes"]:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, plan["workspace_bytes"])
    for profile in plan["profiles"]:
        shapes = builder.create_optimization_profile()
        for name, bounds in profile["shapes"].items():
            shapes.set_shape(name, tuple(bounds["min"]), tuple(bounds["opt"]), tuple(bounds["max"]))
        config.add_optimization_profile(shapes)
    timings = folder / plan["timing_cache"]
    cache = config.create_timing_cache(timings.read_bytes() if timings.is_file() else b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return config


def check(trt: Any, log: Any, network: Any, data: Any, folder: Path) -> int:
    """Load the engine, compare the types of what it takes and gives with the network's, and write its layers."""
    engine = trt.Runtime(log).deserialize_cuda_engine(data)
    if engine is None:
        print("The engine can't be loaded on this GPU.", file=sys.stderr)
        return 1
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    tensors += [network.get_output(index) for index in range(network.num_outputs)]
    wrong = [tensor.name for tensor in tensors if engine.get_tensor_dtype(tensor.name) != tensor.dtype]
    for name in wrong:
        print(f"{name} has another type in the engine than in the graph.", file=sys.stderr)
    layers = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    (folder / LAYERS).write_text(layers, encoding="utf-8")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main(Path(__file__).resolve().parent.parent))
