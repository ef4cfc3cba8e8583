"""Writes bundles with planted faults, to be looked at.

python tools/faults/make_faults.py --list [TEXT]        names of the faults that have a text in their name
python tools/faults/make_faults.py -o FOLDER NAME       the bundle of one fault
"""

from __future__ import annotations

import argparse
from pathlib import Path

from catalog import faults
from fault import make


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list names, do nothing")
    parser.add_argument("-o", "--output", type=Path, help="the folder to make")
    parser.add_argument("--cases", type=lambda text: text.split(","), help="only these golden cases")
    parser.add_argument("name", nargs="?", default="", help="the name, or a part of it")
    args = parser.parse_args()
    found = [fault for fault in faults(args.cases) if args.name in fault.name]
    if args.list:
        print("\n".join(f"{fault.kind}: {fault.name}" for fault in found))
        return
    if args.output is None or len(found) != 1:
        parser.error(f"{len(found)} faults have that name; give -o and the name of one")
    make(found[0], args.output)
    print(f"{args.output}: {found[0].kind}, {found[0].name}")


if __name__ == "__main__":
    main()
