"""The GGUF container: what the gguf package writes, and files that break each rule."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import (
    LLAMA,
    assert_one_sentence,
    gguf_bytes,
    llama_tensors,
    pair,
    table_entry,
    text,
    write_gguf,
)

from edgewright.checkpoint import open_checkpoint
from edgewright.checkpoint.gguf import Strings, read_gguf
from edgewright.errors import (
    CheckpointError,
    EdgewrightError,
    MalformedHeaderError,
    TensorLayoutError,
    TruncatedFileError,
    UnsupportedFormatError,
)

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type(tmp_path: Path, version: int) -> None:
    pairs = [
        pair("u8", U8, b"\xff"),
        pair("i8", I8, b"\xff"),
        pair("u16", U16, b"\xff\xff"),
        pair("i16", I16, b"\xfe\xff"),
        pair("u32", U32, struct.pack("<I", 1 << 31)),
        pair("i32", I32, struct.pack("<i", -5)),
        pair("f32", F32, struct.pack("<f", 0.5)),
        pair("bool", BOOL, b"\1"),
        pair("string", STRING, text("grün")),
        pair("u64", U64, struct.pack("<Q", 1 << 63)),
        pair("i64", I64, struct.pack("<q", -1 << 63)),
        pair("f64", F64, struct.pack("<d", 0.1)),
        pair("ints", ARRAY, struct.pack("<IQ3i", I32, 3, 1, -2, 3)),
        pair("bools", ARRAY, struct.pack("<IQ2B", BOOL, 2, 1, 0)),
        pair("strings", ARRAY, struct.pack("<IQ", STRING, 3) + text("") + text(b"\xff") + text("▁x")),
        pair("none", ARRAY, struct.pack("<IQ", STRING, 0)),
    ]
    path = tmp_path / "v.gguf"
    path.write_bytes(gguf_bytes(pairs, version=version))
    file = read_gguf(path)
    scalars = {key: value for key, value in file.metadata.items() if not isinstance(value, np.ndarray | Strings)}
    assert scalars == {
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -2,
        "u32": 1 << 31,
        "i32": -5,
        "f32": 0.5,
        "bool": True,
        "string": "grün",
        "u64": 1 << 63,
        "i64": -1 << 63,
        "f64": 0.1,
    }
    assert scalars["bool"] is True
    assert file.metadata["ints"].tolist() == [1, -2, 3]
    assert file.metadata["bools"].tolist() == [True, False]
    assert file.metadata["strings"].as_bytes() == [b"", b"\xff", "▁x".encode()]
    assert file.metadata["none"].as_bytes() == []
    assert file.version == version


@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_tensors_are_where_the_table_says(tmp_path: Path, alignment: int) -> None:
    rng = np.random.default_rng(alignment)
    metadata = {"general.architecture": "llama", "general.alignment": alignment}
    arrays = {f"t{n}": rng.normal(size=(n, 3)).astype(np.float32) for n in (1, 5, 7)}
    arrays["half"] = rng.normal(size=(3, 5, 7)).astype(np.float16)
    file = read_gguf(write_gguf(tmp_path / "a.gguf", metadata, arrays))
    for name, array in arrays.items():
        assert file.tensors[name].shape == array.shape
        assert file.tensors[name].data.tobytes() == array.tobytes()


GOOD = table_entry("t")
DATA = b"\0" * 16
LONG = struct.pack("<Q", 1 << 63)
HOSTILE = {
    "empty": (b"", TruncatedFileError),
    "23 bytes": (gguf_bytes()[:23], TruncatedFileError),
    "another magic": (gguf_bytes(magic=b"GGML"), MalformedHeaderError),
    "version 1": (gguf_bytes(version=1), UnsupportedFormatError),
    "version 4": (gguf_bytes(version=4), UnsupportedFormatError),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedFormatError),
    "37 bytes": (gguf_bytes(counts=(1, 1)) + b"\xff" * 13, TruncatedFileError),
    "2^40 tensors": (gguf_bytes(counts=(1 << 40, 0)), TruncatedFileError),
    "2^64 - 1 pairs": (gguf_bytes(counts=(0, (1 << 64) - 1)), TruncatedFileError),
    "100,000 pairs": (gguf_bytes(counts=(0, 100_000)) + b"\0" * 2_000_000, MalformedHeaderError),
    "key of 2^63 bytes": (gguf_bytes([LONG + b"\0" * 20]), TruncatedFileError),
    "key of 64 KiB": (gguf_bytes([pair("k" * 65536, U8, b"\0")]), MalformedHeaderError),
    "key not UTF-8": (gguf_bytes([text(b"\xff\xfe") + struct.pack("<I", U32) + b"\0" * 4]), MalformedHeaderError),
    "string of 2^63 bytes": (gguf_bytes([pair("k", STRING, LONG)]), TruncatedFileError),
    "string not UTF-8": (gguf_bytes([pair("k", STRING, text(b"\xc3"))]), MalformedHeaderError),
    "array of 2^60 numbers": (gguf_bytes([pair("k", ARRAY, struct.pack("<IQ", U32, 1 << 60))]), TruncatedFileError),
    "array of 2^60 strings": (gguf_bytes([pair("k", ARRAY, struct.pack("<IQ", STRING, 1 << 60))]), TruncatedFileError),
    "array string past the end": (
        gguf_bytes([pair("k", ARRAY, struct.pack("<IQQQ", STRING, 2, 0, 1 << 63))]),
        TruncatedFileError,
    ),
    "array cut off": (gguf_bytes([pair("k", ARRAY, struct.pack("<IQQQ", STRING, 2, 8, 0))]), TruncatedFileError),
    "nested arrays": (
        gguf_bytes([pair("k", ARRAY, struct.pack("<IQIQ", ARRAY, 1, U8, 1) + b"\0")]),
        UnsupportedFormatError,
    ),
    "value type 13": (gguf_bytes([pair("k", 13, b"\0" * 8)]), MalformedHeaderError),
    "element type 99": (gguf_bytes([pair("k", ARRAY, struct.pack("<IQ", 99, 1) + b"\0" * 8)]), MalformedHeaderError),
    "bool 2": (gguf_bytes([pair("k", BOOL, b"\2")] * 1 + [pair("l", U64, b"\0" * 8)]), MalformedHeaderError),
    "key twice": (gguf_bytes([pair("k", U32, b"\0" * 4)] * 2), MalformedHeaderError),
    "alignment 0": (gguf_bytes([pair("general.alignment", U32, b"\0" * 4)]), MalformedHeaderError),
    "alignment 24": (gguf_bytes([pair("general.alignment", U32, b"\x18\0\0\0")]), MalformedHeaderError),
    "alignment 2^31": (gguf_bytes([pair("general.alignment", U32, b"\0\0\0\x80")]), MalformedHeaderError),
    "alignment is text": (gguf_bytes([pair("general.alignment", STRING, text("32"))]), MalformedHeaderError),
    "5 dimensions": (gguf_bytes(table=[table_entry("t", (1,) * 5)], data=DATA), TensorLayoutError),
    "2^32 - 1 dimensions": (gguf_bytes(table=[text("t") + b"\xff" * 20]), TensorLayoutError),
    "size 0": (gguf_bytes(table=[table_entry("t", (1 << 40, 0))], data=DATA), TensorLayoutError),
    "size 2^63": (gguf_bytes(table=[table_entry("t", (1 << 63,))], data=DATA), TensorLayoutError),
    "product 2^64": (gguf_bytes(table=[table_entry("t", (1 << 32, 1 << 32))], data=DATA), TensorLayoutError),
    "tensor twice": (gguf_bytes(table=[GOOD, GOOD], data=DATA), MalformedHeaderError),
    "ggml type 99": (gguf_bytes(table=[table_entry("t", kind=99)], data=DATA), UnsupportedFormatError),
    "ggml type IQ4_NL": (gguf_bytes(table=[table_entry("t", (32, 1), 20)], data=DATA), UnsupportedFormatError),
    "half a block": (gguf_bytes(table=[table_entry("t", (48, 2), 2)], data=b"\0" * 64), TensorLayoutError),
    "a vector of blocks": (gguf_bytes(table=[table_entry("t", (32,), 2)], data=b"\0" * 32), TensorLayoutError),
    "offset not aligned": (gguf_bytes(table=[table_entry("t", offset=4)], data=b"\0" * 64), TensorLayoutError),
    "offset past the end": (gguf_bytes(table=[table_entry("t", offset=1 << 62)], data=DATA), TruncatedFileError),
    "data cut off": (gguf_bytes(table=[GOOD], data=b"\0" * 15), TruncatedFileError),
    "no data": (gguf_bytes(table=[GOOD]), TruncatedFileError),
    "overlap": (gguf_bytes(table=[table_entry("a"), table_entry("b")], data=DATA), TensorLayoutError),
    "name of 2^63 bytes": (gguf_bytes(table=[LONG + b"\0" * 40]), TruncatedFileError),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_by_name(tmp_path: Path, case: str) -> None:
    content, error = HOSTILE[case]
    path = tmp_path / "evil.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.type is error, caught.value
    assert_one_sentence(caught.value, "evil.gguf")
    assert peak < 1 << 20


def test_mutated_files_raise_named_errors_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    path = tmp_path / "fuzz.gguf"
    vocabulary = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<s>", "a", "b", "c", "ab", "abc"] + [f"t{n}" for n in range(6)],
        "tokenizer.ggml.token_type": [3] + [1] * 11,
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.bos_token_id": 0,
    }
    write_gguf(path, LLAMA | vocabulary, llama_tensors(rng))
    original = path.read_bytes()
    header_end = original.index(b"output_norm.weight") + 900
    refused = {"file": 0, "model": 0}
    started = time.monotonic()
    for _ in range(500):
        mutated = bytearray(original)
        for _ in range(rng.integers(1, 4)):
            mutated[rng.integers(0, header_end)] = rng.integers(0, 256)
        if rng.random() < 0.1:
            del mutated[rng.integers(0, len(mutated)) :]
        path.write_bytes(mutated)
        try:
            for tensor in read_gguf(path).tensors.values():
                tensor.data.tobytes()
        except CheckpointError as error:
            refused["file"] += 1
            assert_one_sentence(error, "fuzz.gguf")
        try:
            checkpoint = open_checkpoint(path)
            checkpoint.sidecars()
            for name in checkpoint.tensors:
                with np.errstate(all="ignore"):
                    checkpoint.tensors[name].read()
        except EdgewrightError as error:
            refused["model"] += 1
            assert_one_sentence(error, "fuzz.gguf")
    assert refused["file"] > 100
    assert refused["model"] > refused["file"]
    assert time.monotonic() - started < 15


def test_many_strings_are_read_fast(tmp_path: Path) -> None:
    words = [f"w{n}" for n in range(262_144)]
    value = struct.pack("<IQ", STRING, len(words)) + b"".join(map(text, words))
    path = tmp_path / "many.gguf"
    path.write_bytes(gguf_bytes([pair("k", ARRAY, value)]))
    started = time.process_time()
    strings = read_gguf(path).metadata["k"].as_bytes()
    assert time.process_time() - started < 2
    assert strings == [word.encode() for word in words]
