"""llama.cpp through the low-level API of llama-cpp-python, which is built here with every instruction the CPU has."""

import ctypes
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from contenders.base import Contents, Options, SteppedEngine

UBATCH = 512
BATCH = 2048
IMPORTANCE = "importance.npz"
"""Beside the checkpoint: the mean squares of every linear layer's inputs, by the layer's name."""


def _silence(library: Any) -> Any:
    """Turn llama.cpp's log off; the returned callback must be kept alive."""
    callback = library.llama_log_callback(lambda level, text, data: None)
    library.llama_log_set(callback, ctypes.c_void_p(0))
    return callback


def _importance(library: Any, checkpoint: Path) -> Any:
    """Return the importance matrix of `checkpoint`'s calibration text as llama.cpp's null-terminated array."""
    from contenders.gguf_from_hf import Layout

    layout = Layout(checkpoint)
    with np.load(checkpoint.parent / IMPORTANCE) as squares:
        named = [(layout.target(name), squares[name]) for name in squares.files]
    entries = [(name, values) for name, values in named if name is not None]
    array = (library.llama_model_imatrix_data * (len(entries) + 1))()
    for entry, (name, values) in zip(array, entries, strict=False):
        entry.name = name.encode()
        entry.data = (ctypes.c_float * len(values))(*values)
        entry.size = len(values)
    return array


class LlamaCpp(SteppedEngine):
    """One context; decode is llama_decode plus an argmax over the logits where they lie."""

    packages = ("llama-cpp-python", "numpy")
    modules = ("llama_cpp",)

    @staticmethod
    def prepare(checkpoint: Path, out: Path, recipe: Options) -> None:
        out.mkdir(parents=True)
        if source := recipe.get("copy"):  # a file that came with the checkpoint
            shutil.copy(checkpoint / source, out / "model.gguf")
            return
        import llama_cpp

        from contenders.gguf_from_hf import write_gguf

        log = _silence(llama_cpp)
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + recipe["type"])
        params.nthread = 2
        if recipe.get("imatrix"):
            matrix = _importance(llama_cpp, checkpoint)
            params.imatrix = matrix
        with tempfile.TemporaryDirectory(dir=out.parent) as folder:
            source = Path(folder) / "float.gguf"
            write_gguf(checkpoint, source)
            target = out / "model.gguf"
            code = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
        if code != 0:
            raise RuntimeError(f"llama_model_quantize returned {code}")
        del log

    @staticmethod
    def contents(path: Path) -> Contents:
        from contenders.gguf_from_hf import stored_types

        file = path / "model.gguf"
        return {"bytes": file.stat().st_size, "types": stored_types(file)}

    def __init__(self, path: Path, options: Options, threads: int, capacity: int) -> None:
        import llama_cpp

        self.lib = llama_cpp
        self.log = _silence(llama_cpp)
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path / "model.gguf").encode(), model_params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = capacity
        params.n_batch = BATCH
        params.n_ubatch = UBATCH
        params.n_threads = params.n_threads_batch = threads
        if "flash" in options:  # otherwise llama.cpp decides
            params.flash_attn_type = int(options["flash"])
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self.one = (ctypes.c_int32 * 1)()

    def _decode(self, batch: Any) -> None:
        code = self.lib.llama_decode(self.context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")

    def _argmax(self) -> int:
        logits = self.lib.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).argmax())

    def _forget(self) -> None:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), False)

    def start(self, ids: list[int]) -> int:
        self._forget()
        prompt = (ctypes.c_int32 * len(ids))(*ids)
        self._decode(self.lib.llama_batch_get_one(prompt, len(ids)))
        return self._argmax()

    def step(self, token: int) -> int:
        self.one[0] = token
        self._decode(self.lib.llama_batch_get_one(self.one, 1))
        return self._argmax()

    def logits(self, ids: list[int]) -> np.ndarray:
        self._forget()
        batch = self.lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for position, token in enumerate(ids):
            batch.token[position] = token
            batch.pos[position] = position
            batch.n_seq_id[position] = 1
            batch.seq_id[position][0] = 0
            batch.logits[position] = 1
        self._decode(batch)
        rows = np.ctypeslib.as_array(self.lib.llama_get_logits(self.context), shape=(len(ids), self.vocab_size)).copy()
        self.lib.llama_batch_free(batch)
        return rows


ENGINE = LlamaCpp
