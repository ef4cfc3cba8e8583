"""Arrays from files: NumPy's .npz, never pickled."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.errors import ObservationError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

#: No observation of a robot comes near this; a file that unpacks to more is refused before it is unpacked.
MAX_BYTES = 1 << 30


def read_npz(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a .npz file by name.

    Raises UsageError when the file can't be read, ObservationError when it is no .npz file, is damaged, holds Python
    objects, or unpacks to more than `MAX_BYTES`.
    """
    import numpy as np

    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > MAX_BYTES:
            raise ObservationError(f"{path} unpacks to more than {MAX_BYTES >> 30} GiB: store one observation only.")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise UsageError(f"{path} can't be read ({error.strerror or error}): check its name and permissions.") from None
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        reason = "it holds Python objects" if "pickle" in str(error) else str(error).splitlines()[0].rstrip(".")
        raise ObservationError(
            f"{path} can't be read as a .npz file of arrays ({reason}): write it with numpy.savez, with texts as str."
        ) from None
    if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise ObservationError(f"{path} holds {foreign[0]}, which is no array: write it with numpy.savez.")
    return arrays
