"""Stand-ins for other vendors' compilers: a program on the PATH that does what a test wants, and its tool file."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

#: A compiler of one argument more than a real one has: what it is to do.
_PROGRAM = """#!{python}
import hashlib, json, os, pathlib, subprocess, sys, time

if "--version" in sys.argv:
    print("Vendor compiler, version 3.2.1 (built today)")
    sys.exit(0)
mode, model, output = sys.argv[1:4]
here = pathlib.Path.cwd()
if mode == "good":
    digest = hashlib.sha256(pathlib.Path(model).read_bytes())
    for path in sorted(pathlib.Path("calibration").rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    (pathlib.Path(output) / "net.bin").write_text(digest.hexdigest())
    (pathlib.Path(output) / "net.json").write_text(json.dumps(sys.argv[4:]))
    print(f"in {{here}}: {{sorted(os.listdir())}}")
elif mode == "words":
    print("reading", model)
    print("INFO all is well", file=sys.stderr)
    print("ERROR: layer 7 has a shape that I don't like", file=sys.stderr)
    print("goodbye", file=sys.stderr)
    sys.exit(3)
elif mode == "silent":
    sys.exit(9)
elif mode == "killed":
    os.kill(os.getpid(), 9)
elif mode == "hangs":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path(os.environ["TOLD"]).write_text(f"{{os.getpid()}} {{child.pid}}")
    time.sleep(600)
elif mode == "nothing":
    pass
elif mode == "outside":
    (here.parent / "weights.bin").write_bytes(b"mine")
elif mode == "link":
    (pathlib.Path(output) / "net.bin").symlink_to("/etc/hostname")
elif mode == "linked folder":
    (pathlib.Path(output) / "all").symlink_to("..")
    (here / "net.bin").write_bytes(b"mine")
elif mode == "pipe":
    os.mkfifo(pathlib.Path(output) / "net.bin")
elif mode == "odd name":
    (pathlib.Path(output) / "net\\udcff").write_bytes(b"made")
elif mode == "talks":
    line = "x" * 99 + "\\n"
    for _ in range(6_000):
        sys.stdout.write(line)
    print("the last word", file=sys.stderr)
    (pathlib.Path(output) / "net.bin").write_bytes(b"made")
"""


def make_program(folder: Path, name: str = "vendorcc") -> Path:
    """Write the stand-in program."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(_PROGRAM.format(python=sys.executable), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def tool_file(path: Path, mode: str = "good", **changes: Any) -> Path:
    """Write a tool file for it; a change to `...` takes a key out."""
    data: dict[str, Any] = {
        "title": "Vendor compiler",
        "runtime": "vendor",
        "commands": [["vendorcc", mode, "{model}", "{output}"]],
        "products": ["output/net.bin"],
        "version": {"command": ["vendorcc", "--version"], "pattern": r"version (\S+)"},
        "calibration": {"count": 2, "format": "raw"},
        "errors": "^ERROR",
        **changes,
    }
    path.write_text(yaml.safe_dump({k: v for k, v in data.items() if v is not ...}), encoding="utf-8")
    return path


def on_path(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put the stand-in program on the PATH."""
    make_program(folder)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
