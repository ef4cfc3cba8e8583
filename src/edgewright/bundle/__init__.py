"""What is shipped: a folder with a manifest that says what was really done, and a digest of every file."""

from edgewright.bundle.machine import Machine, this_machine
from edgewright.bundle.manifest import (
    MANIFEST,
    SCHEMA,
    Manifest,
    StageEntry,
    check_files,
    opened_while_checked,
    read_manifest,
    write_manifest,
)

__all__ = [
    "MANIFEST",
    "SCHEMA",
    "Machine",
    "Manifest",
    "StageEntry",
    "check_files",
    "opened_while_checked",
    "read_manifest",
    "this_machine",
    "write_manifest",
]
