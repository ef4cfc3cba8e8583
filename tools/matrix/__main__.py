"""Print the matrix of families and scenarios, and write docs/supported.md.

    python tools/matrix [--write] [--jobs N] [ROW ...]

Exits with 1 when a cell is neither right nor refused.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor

import matrix_page
from cells import COLUMNS, Cell, cells_of, names


def _work(name: str) -> tuple[str, dict[str, Cell] | str]:
    try:
        return name, cells_of(name)
    except Exception:
        return name, traceback.format_exc(limit=-4)


def _shown(cell: Cell) -> str:
    if cell.refused:
        return "refused"
    return f"{cell.error:.0e}" if cell.right else f"WRONG {cell.error:.1e}"


def main() -> int:
    """Run the rows that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names of goldens; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--write", action="store_true", help="write docs/supported.md and the READMEs (all rows)")
    args = parser.parse_args()
    if args.write and args.rows:
        parser.error("--write needs all rows: leave the names out")
    wanted = args.rows or names()
    if unknown := set(wanted) - set(names()):
        parser.error(f"unknown rows {', '.join(sorted(unknown))}")
    begin = time.monotonic()
    wrong = 0
    results: dict[str, dict[str, Cell]] = {}
    print(f"{'row':32s} " + " ".join(f"{column:>11s}" for column in COLUMNS))
    with ProcessPoolExecutor(args.jobs) as pool:
        for name, cells in pool.map(_work, wanted):
            if isinstance(cells, str):
                wrong += 1
                print(f"{name:32s} FAILED\n{cells}")
                continue
            results[name] = cells
            wrong += sum(not cell.right and not cell.refused for cell in cells.values())
            print(f"{name:32s} " + " ".join(f"{_shown(cells[column]):>11s}" for column in COLUMNS))
            for sentence in sorted({cell.refused for cell in cells.values() if cell.refused}):
                print(f"{'':32s}   {sentence[:200]}")
    print(f"{len(wanted)} rows, {wrong} wrong, {time.monotonic() - begin:.0f} s")
    if args.write and not wrong:
        matrix_page.write(results)
        print(f"wrote {matrix_page.PAGE.relative_to(matrix_page.ROOT)} and the READMEs")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
