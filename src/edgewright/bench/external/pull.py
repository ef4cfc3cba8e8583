"""Brings a profile from where the program wrote it into the run folder, and tells a missing one from a failed copy."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from edgewright.bench.external.prefix import Prefix

EXECUTIONS, PROFILE = "executions", "profile.json"
Pulled = Literal["there", "absent", "failed"]

#: How long a copy may take.
_LIMIT_S = 120
#: What the usual programs say of a file that isn't there.
_ABSENT = re.compile(r"no such file|does not exist|not found|cannot find", re.IGNORECASE)


def probe(prefix: Prefix, remote: str) -> Pulled:
    """Whether a profile of that name is on the device already."""
    with tempfile.TemporaryDirectory() as folder:
        return pull(prefix, remote, Path(folder))[0]


def pull(prefix: Prefix, remote: str, folder: Path) -> tuple[Pulled, str]:
    """Copy the device's file to `profile.json` of a folder; returns how that went, and what the copy program said.

    Nothing is removed on the device. Where the program runs here it has written into the folder itself.
    """
    local = folder / PROFILE
    if not prefix.remote:
        return ("there" if local.is_file() else "absent"), ""
    argv, prints = prefix.pull(remote, str(local))
    partial = folder / f".{PROFILE}.partial"
    try:
        with partial.open("wb") as out:
            done = subprocess.run(  # a list, no shell here
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, timeout=_LIMIT_S, check=False
            )
        said = done.stderr[-4096:].decode(errors="replace").strip()
        if not prints:
            said = f"{said}\n{partial.read_bytes()[-4096:].decode(errors='replace')}".strip()
        if done.returncode == 0 and prints:
            partial.replace(local)
        if done.returncode == 0 and local.is_file():
            return "there", said
        return ("absent" if _ABSENT.search(said) else "failed"), said or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        return "failed", f"no answer for {_LIMIT_S} s"
    except (OSError, ValueError) as error:
        return "failed", getattr(error, "strerror", None) or str(error)
    finally:
        partial.unlink(missing_ok=True)
