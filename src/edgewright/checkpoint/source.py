"""From a path to a checkpoint: what is it, and does it exist."""

from __future__ import annotations

import difflib
from pathlib import Path

from edgewright.checkpoint.checkpoint import Checkpoint
from edgewright.checkpoint.folder import open_folder
from edgewright.checkpoint.text import shown
from edgewright.errors import CheckpointError, SourceNotFoundError, UnsupportedFormatError


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a Hugging Face folder, a `.gguf` file, or the folder of a `.safetensors` file; only headers are read.

    Raises SourceNotFoundError if nothing is there, UnsupportedFormatError if the file is none of these, another
    CheckpointError if a file breaks its format, UnknownModelTypeError if a GGUF architecture is not known.
    """
    path = Path(path)
    try:
        return _open(path)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path} can't be read ({error.strerror or error}); check its permissions and the disk."
        ) from None


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        return open_folder(path)
    if not path.is_file():
        raise SourceNotFoundError(f"{path} does not exist{_near_names(path)}; give a model folder or a .gguf file.")
    if path.suffix == ".safetensors":
        checkpoint = open_folder(path.parent)
        if not any(path.samefile(file) for file in checkpoint.files):
            raise UnsupportedFormatError(
                f"{path} is not part of the checkpoint in its folder, which is made of"
                f" {shown(checkpoint.files[-1].name)};"
                " give the folder, or move the file to one of its own with a config.json."
            )
        return checkpoint
    with path.open("rb") as file:
        is_gguf = path.suffix == ".gguf" or file.read(4) == b"GGUF"
    if not is_gguf:
        raise UnsupportedFormatError(
            f"{path} is neither a .gguf nor a .safetensors file; give a model folder or a .gguf file."
        )
    from edgewright.checkpoint.gguf_models import open_gguf

    return open_gguf(path)


def _near_names(path: Path) -> str:
    """Return " (did you mean ...)" with names in the parent folder that look alike, or nothing."""
    parent = path.parent
    if not parent.is_dir():
        return f" (there is no folder {parent} either)"
    names = difflib.get_close_matches(path.name, [entry.name for entry in parent.iterdir()], n=3)
    return f" (did you mean {', '.join(str(parent / name) for name in names)})" if names else ""
