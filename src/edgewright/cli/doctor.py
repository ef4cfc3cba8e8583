"""`edgewright doctor`: can this machine do the work?"""

from __future__ import annotations

import argparse
import sys

from edgewright.cli._output import fields, print_json, size

NAME = "doctor"
HELP = "Show versions, CPU features, extras, free memory and disk, and whether the engine runs here."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Examine; returns 4 when the engine does not run."""
    from edgewright.cli._health import examine

    health = examine()
    engine = health["engine"]
    if args.json:
        print_json(health)
        return 0 if engine["ok"] else 4
    machine, memory = health["machine"], health["memory"]
    rows: list[tuple[str, object]] = [
        (name, version or "not installed") for name, version in health["versions"].items()
    ]
    rows += [
        ("CPU", machine["cpu"] or machine["arch"]),
        ("features", " ".join(machine["features"]) or "none known"),
        ("cores", ", ".join(f"{machine[f'{kind}_cores']} {kind}" for kind in ("physical", "logical", "usable"))),
        ("memory", f"{_size(memory['available_bytes'])} available of {_size(memory['total_bytes'])}"),
        ("disk", f"{size(health['disk']['free_bytes'])} free at {health['disk']['path']}"),
    ]
    for name, extra in health["extras"].items():
        lacks = f"lacks {', '.join(extra['missing'])}: {extra['install']}"
        rows.append((f"extra {name}", "present" if not extra["missing"] else lacks))
    rows.append(("engine", f"{'works' if engine['ok'] else 'DOES NOT WORK'}: {engine['detail']}"))
    sys.stdout.write(fields(rows) + "\n")
    return 0 if engine["ok"] else 4


def _size(count: int | None) -> str:
    return "unknown" if count is None else size(count)
