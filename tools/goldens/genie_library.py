"""Asks the real libGenie, through its C interface, whether it takes a configuration.

Each question is answered by a process of its own, since the library keeps state; the process that asks stays clean. The
library comes with the package `onnxruntime-qnn` (Linux, x86-64).
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from genie_configs import BASES

#: What the functions of a kind of configuration begin with.
FAMILIES = {
    "dialog": "GenieDialog",
    "embedding": "GenieEmbedding",
    "engine": "GenieEngine",
    "sampler": "GenieSampler",
    "node": "GenieNode",
    "profile": "GenieProfile",
}
#: What the library says of a file that isn't there, when it makes a node. All else that stops it is the configuration.
_MISSING = ("Can't access model file", "scale file not found", "offset file not found")
#: What it says of a table that isn't there or isn't named, and of a tokenizer.
_NO_TABLE, _NO_TOKENIZER = "Embedding File not present", "failed to load tokenizer"


def library_path() -> Path | None:
    """Return the library's path, None where the package isn't installed."""
    spec = importlib.util.find_spec("onnxruntime_qnn")
    folders = spec.submodule_search_locations if spec else None
    found = [Path(folder) / "libGenie.so" for folder in folders or ()]
    return next((path for path in found if path.is_file()), None)


class Library:
    """The library, loaded once. `folder` is where a node's files are looked for."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._library, self._folder = ctypes.CDLL(str(path)), folder

    @property
    def version(self) -> str:
        """The version of its interface."""
        parts = ("Major", "Minor", "Patch")
        return ".".join(str(getattr(self._library, f"Genie_getApi{part}Version")()) for part in parts)

    def verdict(self, kind: str, text: bytes) -> tuple[int | None, bool | None]:
        """Return the status of creating a configuration (a node: the node itself), and whether it was taken.

        The status is None where the library crashes. A node's is an error for files that are missing, too: the node is
        taken where that is the only reason, and None where a file is missing before all is looked at.
        """
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(write, 1)
            os.dup2(write, 2)
            os.chdir(self._folder)
            status = self._create(kind, text)
            ctypes.CDLL(None).fflush(None)
            os.write(write, b"\nSTATUS=%d" % status)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            said, _, status_text = stream.read().decode(errors="replace").rpartition("\nSTATUS=")
        if os.waitpid(child, 0)[1] or not status_text:
            return None, False
        status = int(status_text)
        if kind != "node" or status != -1:
            return status, status == 0
        if _NO_TOKENIZER in said:
            return status, None
        unmade = any(word in said for word in _MISSING) or (_NO_TABLE in said and b'"lut-path"' in text)
        return status, unmade

    def node_profile(self) -> bytes:
        """Return the profile of a node that looks up a table, run in a pipeline without input."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.chdir(self._folder)
            os.write(write, self._profiled(json.dumps(BASES["node"]["table"]).encode()))
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            found = stream.read()
        os.waitpid(child, 0)
        return found

    def _profiled(self, text: bytes) -> bytes:
        def made(function: str, *arguments: Any) -> ctypes.c_void_p:
            handle = ctypes.c_void_p()
            status = getattr(self._library, function)(*arguments, ctypes.byref(handle))
            assert status == 0, f"{function}: {status}"
            return handle

        profile = made("GenieProfile_create", None)
        node_config = made("GenieNodeConfig_createFromJson", text)
        self._library.GenieNodeConfig_bindProfiler(node_config, profile)
        node = made("GenieNode_create", node_config)
        pipeline_config = made("GeniePipelineConfig_createFromJson", b"{}")
        self._library.GeniePipelineConfig_bindProfiler(pipeline_config, profile)
        pipeline = made("GeniePipeline_create", pipeline_config)
        assert self._library.GeniePipeline_addNode(pipeline, node) == 0
        assert self._library.GeniePipeline_execute(pipeline, None) == 0
        buffers: list[Any] = []

        def allocate(size: int, place: Any) -> None:
            buffers.append(ctypes.create_string_buffer(size))
            place[0] = ctypes.addressof(buffers[-1])

        allocator = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))(allocate)
        found = ctypes.c_char_p()
        assert self._library.GenieProfile_getJsonData(profile, allocator, ctypes.byref(found)) == 0
        return found.value or b""

    def _create(self, kind: str, text: bytes) -> int:
        family = FAMILIES[kind]
        create = getattr(self._library, f"{family}Config_createFromJson")
        create.restype = ctypes.c_int32
        create.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
        config = ctypes.c_void_p()
        status: int = create(text, ctypes.byref(config))
        if kind != "node" or status:
            return status
        make = self._library.GenieNode_create
        make.restype = ctypes.c_int32
        make.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
        made: int = make(config, ctypes.byref(ctypes.c_void_p()))
        return made
