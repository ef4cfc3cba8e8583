"""Verify every golden, language models and policies, on OpenVINO in every kind of recipe; print what came of it.

    python tools/matrix/engines.py [--jobs N] [--write] [ROW ...]

Each cell is a build with `--engine openvino`: verified, or refused by the sentence below the row. Exits with 1 when a
cell is neither. Every row is a process of its own, which a crash ends alone. `--write` writes the page
docs/supported-openvino.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
GOLDENS = ROOT / "tests" / "goldens"
PAGE = ROOT / "docs" / "supported-openvino.md"
_HALF = "lm_head: {format: float16}\nembedding: {format: float16}\n"
#: The recipes by name: built-in ones, and formats of the body alone, which need no calibration.
RECIPES = {
    "float32": "float32",
    "float16": "float16",
    "int8": "int8",
    "int4": "int4",
    "int4 asym": _HALF + "body: {format: int4, group: 32, zero_point: true}\n",
    "int8 inputs": "policy-int8",
    "fp8": _HALF + "body: {format: fp8, group: channel}\n",
    "nvfp4": _HALF + "body: {format: nvfp4}\n",
    "mxfp4": "mxfp4",
    "mxfp8 inputs": "mxfp8",
}
VERIFIED, TIMEOUT_S = "verified", 1800


def rows() -> list[str]:
    """Return the names of all rows: `text/NAME` and `policies/NAME`."""
    text = sorted(path.parent.name for path in (GOLDENS / "text").glob("*/case.json"))
    policies = sorted(path.parent.name for path in (GOLDENS / "policies").glob("*/golden.json"))
    return [f"text/{name}" for name in text] + [f"policies/{name}" for name in policies]


def cell(row: str, recipe: str, folder: Path) -> str:
    """Build a cell; returns `verified`, a refusal's sentence, or what is wrong with WRONG before it."""
    from edgewright.build.engines import engine_request
    from edgewright.build.pipeline import deploy
    from edgewright.errors import ConfigError, RecipeError, UnsupportedFormatError, VerificationError
    from edgewright.quant.recipe_file import parse_recipe
    from policy_builds import request_for, source_of

    kind, name = row.split("/")
    said = RECIPES[recipe]
    asked = parse_recipe(said, recipe) if "\n" in said else said
    policy = kind == "policies"
    source = source_of(name) if policy else GOLDENS / "text" / name
    request = request_for(name) if policy else None

    def build(engine: str) -> None:
        deploy(source, folder, recipe=asked, policy=request, engines=engine_request(engine), force=True)

    try:
        build("openvino")
    except VerificationError as error:
        try:
            build("onnxruntime")
        except VerificationError as other:
            return f"The recipe is too coarse for these weights on ONNX Runtime as well. {other}"
        return f"WRONG {error}"
    except (ConfigError, RecipeError, UnsupportedFormatError) as error:
        return str(error)
    except Exception as error:
        return f"WRONG {type(error).__name__}: {error}"
    return VERIFIED


def row_cells(row: str) -> dict[str, str]:
    """Build the cells of a row in a process of its own; those that it didn't come to are WRONG."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", row]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    missing = f"WRONG the process ended with {done.returncode}: {done.stderr.strip()[-200:]}"
    return {recipe: found.get(recipe, missing) for recipe in RECIPES}


def page(results: dict[str, dict[str, str]]) -> str:
    """Return docs/supported-openvino.md."""
    lines = [
        "# What is verified on OpenVINO",
        "",
        "Every cell is a build of a tiny checkpoint with `--engine openvino`, verified as every bundle is, or refused",
        "before it is written, by the sentence under the table. `python tools/matrix/engines.py --write` writes this",
        "page.",
        "",
        f"| row | {' | '.join(RECIPES)} |",
        f"|---|{'---|' * len(RECIPES)}",
    ]
    sentences: dict[str, int] = {}
    for row, cells in results.items():
        shown = []
        for said in cells.values():
            number = 0 if said == VERIFIED else sentences.setdefault(said, len(sentences) + 1)
            shown.append(f"refused ({number})" if number else VERIFIED)
        lines.append(f"| `{row}` | {' | '.join(shown)} |")
    lines += ["", *(f"({number}) {sentence}" for sentence, number in sentences.items())]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Run the rows that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="text/NAME or policies/NAME; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--write", action="store_true", help="write docs/supported-openvino.md (all rows)")
    parser.add_argument("--one", metavar="ROW", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        with tempfile.TemporaryDirectory() as folder:
            for recipe in RECIPES:
                print(json.dumps([recipe, cell(args.one, recipe, Path(folder) / "b")]), flush=True)
        return 0
    if args.write and args.rows:
        parser.error("--write needs all rows: leave the names out")
    wanted = args.rows or rows()
    if unknown := set(wanted) - set(rows()):
        parser.error(f"unknown rows {', '.join(sorted(unknown))}")
    begin, wrong = time.monotonic(), 0
    results: dict[str, dict[str, str]] = {}
    with ThreadPoolExecutor(args.jobs) as pool:
        for row, cells in zip(wanted, pool.map(row_cells, wanted), strict=True):
            results[row] = cells
            wrong += sum(said.startswith("WRONG") for said in cells.values())
            shown = {VERIFIED: "verified"}
            marks = [shown.get(said, "WRONG" if said.startswith("WRONG") else "refused") for said in cells.values()]
            print(f"{row:40s} " + " ".join(f"{mark:>12s}" for mark in marks), flush=True)
            for said in sorted(set(cells.values()) - {VERIFIED}):
                print(f"{'':40s}   {said[:240]}")
    print(f"{len(wanted)} rows, {wrong} wrong, {time.monotonic() - begin:.0f} s")
    if args.write and not wrong:
        PAGE.write_text(page(results), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
