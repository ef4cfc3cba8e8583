"""What a machine can do: a platform's numbers, or what products and copies reach on this one.

Measured are ONNX Runtime's own product of float32 matrices, its product of int8 inputs and int8 weights, and how fast
memory is copied and a large matrix is read for a product with one vector; of each the best of several tries counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgewright.plan.roofline import Limits
from edgewright.profile.profile import Peaks
from edgewright.quiet_ort import ort
from edgewright.runtime.engines.onnxruntime import share
from edgewright.targets.platform import Platform

#: The numbers that products are made of, as the plan names them.
_MULTIPLIES = ("float", "int8", "int4", "fp8", "nvfp4")
#: Rows, width and columns of the products that are timed, and of the matrix that is read.
_PRODUCT, _READ = (512, 2048, 2048), (1, 4096, 16384)
_COPIED_BYTES = 1 << 27
_TRIES = 5


def platform_peaks(platform: Platform, bandwidth: float | None = None) -> Peaks:
    """Return a platform's peaks; `bandwidth` in bytes a second goes before its own."""
    limits = Limits(platform, bandwidth or platform.bandwidth_bytes_per_s)
    known = {name: peak for name in _MULTIPLIES if (peak := limits.peak(name)) is not None}
    return Peaks(platform.title, limits.bytes_per_s, known)


def measured_peaks(threads: int | None = None) -> Peaks:
    """Return what this machine reaches with `threads` cores, None for the physical ones; takes about two seconds."""
    rows, width, columns = _PRODUCT
    operations = 2.0 * rows * width * columns
    return Peaks(
        "this machine, as measured",
        max(_copied(threads), _read(threads)),
        {
            "float": operations / _seconds(_float_product(*_PRODUCT, threads)),
            "int8": operations / _seconds(_int8_product(*_PRODUCT, threads)),
        },
    )


def _seconds(call: Callable[[], object]) -> float:
    """Return the shortest time of a call."""
    call()
    found = []
    for _ in range(_TRIES):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def _copied(threads: int | None) -> float:
    """Return bytes a second that are read and written while memory is copied."""
    workers = threads or _cores()
    source = np.ones(_COPIED_BYTES // 4, np.float32)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(source, workers), np.array_split(target, workers), strict=True))
    with ThreadPoolExecutor(workers) as pool:

        def copy() -> None:
            list(pool.map(lambda part: np.copyto(part[1], part[0]), parts))

        return 2 * _COPIED_BYTES / _seconds(copy)


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(threads: int | None) -> float:
    """Return bytes a second that a product of one row with a large matrix reads."""
    rows, width, columns = _READ
    return 4 * width * columns / _seconds(_float_product(rows, width, columns, threads, constant=False))


def _float_product(
    rows: int, width: int, columns: int, threads: int | None, *, constant: bool = True
) -> Callable[[], object]:
    weight = np.full((width, columns), 0.5, np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    given = {"x": np.full((rows, width), 0.5, np.float32)}
    weights = {"w": weight} if constant else {}
    return _session(
        [node], given if constant else {**given, "w": weight}, weights, (rows, columns), TensorProto.FLOAT, threads
    )


def _int8_product(rows: int, width: int, columns: int, threads: int | None) -> Callable[[], object]:
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    given = {"x": np.full((rows, width), 3, np.uint8)}
    weights = {"w": np.full((width, columns), 3, np.int8)}
    return _session([node], given, weights, (rows, columns), TensorProto.INT32, threads)


def _session(
    nodes: list[onnx.NodeProto],
    given: dict[str, np.ndarray],
    weights: dict[str, np.ndarray],
    shape: tuple[int, int],
    result: int,
    threads: int | None,
) -> Callable[[], object]:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    graph = helper.make_graph(
        nodes,
        "peak",
        inputs,
        [helper.make_tensor_value_info("y", result, shape)],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    kept = {name: share(array) for name, array in given.items()}
    for name, value in kept.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y")

    def run(_kept: object = kept) -> None:
        session.run_with_iobinding(binding)

    return run
