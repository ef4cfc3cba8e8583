"""Writes tests/goldens/genie/verdicts.jsonl.gz: what the real libGenie says to some thousand configurations.

    python make_genie_verdicts.py [--count N] [--seed N] [--print | --ask FILE]

Needs the package of requirements-genie.txt, which has the library (Linux, x86-64). One line a configuration: its kind,
its text, the status that the library returned, and whether it was taken. What the library prints is not kept. Also
writes node_profile.json, a profile that the library made of a node and a pipeline.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from genie_configs import cases
from genie_library import Library, library_path

GOLDENS = Path(__file__).parents[2] / "tests" / "goldens"
FOLDER = GOLDENS / "genie"


def files_for_nodes(folder: Path) -> None:
    """Put what the nodes of the cases name into a folder: a tokenizer, and a table of 100 rows of 64."""
    shutil.copy(GOLDENS / "tokenizers" / "bpe_chatml" / "tokenizer.json", folder)
    (folder / "lut.raw").write_bytes(bytes(100 * 64 * 2))


def verdicts(library: Library, count: int, seed: int) -> Iterator[str]:
    """Yield a line for every configuration that the library has a clear word about."""
    for case in cases(count, seed):
        status, taken = library.verdict(case.kind, case.text.encode())
        if taken is not None:
            yield json.dumps({"kind": case.kind, "status": status, "taken": taken, "text": case.text})


def main() -> None:
    """Ask, and write or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--print", action="store_true", help="print the verdicts and write nothing")
    parser.add_argument("--ask", metavar="FILE", type=Path, help="print the verdict on a dialog's file only")
    args = parser.parse_args()
    path = library_path()
    if path is None:
        raise SystemExit("The package onnxruntime-qnn is not installed: pip install -r requirements-genie.txt.")
    with tempfile.TemporaryDirectory() as name:
        files_for_nodes(Path(name))
        library = Library(path, Path(name))
        if args.ask:
            print(*library.verdict("dialog", args.ask.read_bytes()))
            return
        if args.print:
            for line in verdicts(library, args.count, args.seed):
                print(line, flush=True)
            return
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / "node_profile.json").write_bytes(library.node_profile())
        head = json.dumps({"library": library.version, "count": args.count, "seed": args.seed})
        lines = [head, *verdicts(library, args.count, args.seed)]
    with (FOLDER / "verdicts.jsonl.gz").open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(("\n".join(lines) + "\n").encode())
    print(f"{len(lines) - 1} verdicts of libGenie {library.version}")


if __name__ == "__main__":
    main()
