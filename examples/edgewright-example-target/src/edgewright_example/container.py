"""The file that the example's compiler writes and its engine reads.

Eight bytes say what it is; then the length of a JSON header (4 bytes, little-endian), the header, and the graph,
compressed. The header has the graph's size and SHA-256. Weights stay in the bundle's own file.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from pathlib import Path

from edgewright.errors import BundleError

MAGIC = b"EWEXMPL1"
_MOST_BYTES = 1 << 30


def write_container(path: Path, graph: bytes, level: int) -> None:
    """Write a graph; the same graph and level give the same bytes."""
    header = json.dumps({"bytes": len(graph), "sha256": hashlib.sha256(graph).hexdigest()}, sort_keys=True).encode()
    path.write_bytes(MAGIC + struct.pack("<I", len(header)) + header + zlib.compress(graph, level))


def read_container(path: Path) -> bytes:
    """Return the graph; raises BundleError when the file is not what it says."""
    data = path.read_bytes()
    try:
        if data[:8] != MAGIC:
            raise ValueError
        (length,) = struct.unpack_from("<I", data, 8)
        header = json.loads(data[12 : 12 + length])
        size = int(header["bytes"])
        if not 0 <= size <= _MOST_BYTES:
            raise ValueError
        graph = zlib.decompressobj().decompress(data[12 + length :], max(size, 1))
        if len(graph) != size or hashlib.sha256(graph).hexdigest() != header["sha256"]:
            raise ValueError
    except (ValueError, KeyError, TypeError, struct.error, zlib.error):
        raise BundleError(
            f"{path.name} is no whole file of the example's compiler: compile the bundle again."
        ) from None
    return graph
