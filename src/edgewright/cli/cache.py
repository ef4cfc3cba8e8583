"""`edgewright cache`: what the cache folder holds, how large it is, and how to empty it."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from edgewright.cli._output import note, print_json, size, table

if TYPE_CHECKING:
    from edgewright.build.cached import Cached

NAME = "cache"
HELP = "Show, measure or empty the folder where builds keep what can be made again."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "size", "clear"),
        help="list what is there, tell its size and the limit, or delete the finished steps of builds (default: list)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="with clear: delete quantized checkpoints and unfinished calibrations, too; a bundle made from one can "
        "then be verified against the original checkpoint only after deploy --force",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """List, measure or clear."""
    from edgewright.errors import UsageError

    if args.all and args.action != "clear":
        raise UsageError("--all is for cache clear: leave it out.")
    if args.action == "clear":
        return _clear(args)
    return _list(args) if args.action == "list" else _size(args)


def _list(args: argparse.Namespace) -> int:
    from edgewright.build.cached import contents

    found = contents()
    if args.json:
        print_json([one.to_json() for one in found])
        return 0
    if not found:
        note("the cache is empty", quiet=args.quiet)
        return 0
    rows = [(one.kind, _printable(one.title), size(one.bytes), _day(one.used)) for one in found]
    sys.stdout.write(table(("kind", "what", "bytes", "last used"), rows) + "\n")
    return 0


def _size(args: argparse.Namespace) -> int:
    from edgewright.build.cached import KINDS, contents
    from edgewright.build.store import limit_bytes
    from edgewright.files import cache_home

    found, limit = contents(), limit_bytes()
    totals = {kind: sum(one.bytes for one in found if one.kind == kind) for kind in KINDS}
    if args.json:
        print_json({"path": str(cache_home()), "bytes": totals, "limit_bytes": limit})
        return 0
    rows = [(f"{kind}s", size(total)) for kind, total in totals.items()]
    sys.stdout.write(f"{cache_home()}, finished steps take at most {size(limit)}\n{table(('kind', 'bytes'), rows)}\n")
    return 0


def _clear(args: argparse.Namespace) -> int:
    from edgewright.build.cached import clear

    done = clear(everything=args.all)
    if args.json:
        print_json({"deleted": [one.to_json() for one in done.gone], "in_use": [one.to_json() for one in done.in_use]})
        return 0
    sys.stdout.write(f"{_count(done.gone)} deleted, {size(sum(one.bytes for one in done.gone))}\n")
    if done.in_use:
        note(f"note: {_count(done.in_use)} stay: a build works with them", quiet=args.quiet)
    return 0


def _count(found: tuple[Cached, ...]) -> str:
    return f"{len(found)} {'entry' if len(found) == 1 else 'entries'}"


def _printable(title: str) -> str:
    """Return a title, which has a model's name, without what a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in title)


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
