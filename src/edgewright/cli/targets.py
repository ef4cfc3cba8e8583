"""`edgewright targets`: what can be compiled for, what compiles for it, and whether that is installed."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from edgewright.cli._output import fields, print_json

if TYPE_CHECKING:
    from edgewright.targets.external.tool import Tool

NAME = "targets"
HELP = "List the targets, dialects and engines, those of installed packages included, and what each one needs."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """List."""
    found = listed()
    if args.json:
        print_json(found)
        return 0
    parts = []
    for title, kind in (("targets", "targets"), ("compilers of the target external", "tools")):
        parts.append(f"{title}\n{_indented([(one['name'], _told(one)) for one in found[kind]])}")
    for title, kind in (("dialects", "dialects"), ("engines", "engines")):
        parts.append(f"{title}\n{_indented([(one['name'], _whose(one)) for one in found[kind]])}")
    sys.stdout.write("\n\n".join(parts) + "\n")
    return 0


def listed() -> dict[str, list[dict[str, Any]]]:
    """Return targets, external tools, dialects and engines as JSON values, each by name, the toolkit's own first."""
    from edgewright.dialects import LOWERINGS
    from edgewright.plugins import DIALECTS, ENGINES, plugin_names
    from edgewright.runtime.engine import engine_names
    from edgewright.targets import target_names
    from edgewright.targets.external.tool import find_tool, tool_names

    return {
        "targets": [_target(name) for name in target_names()],
        "tools": [_tool(find_tool(name)) for name in tool_names()],
        "dialects": [_part(DIALECTS, name, set(LOWERINGS)) for name in (*LOWERINGS, *plugin_names(DIALECTS))],
        "engines": [_part(ENGINES, name, set(engine_names()) - {*plugin_names(ENGINES)}) for name in engine_names()],
    }


def _target(name: str) -> dict[str, Any]:
    """Return what there is to tell of a target; one that can't be loaded says why."""
    from edgewright.errors import EdgewrightError
    from edgewright.plugins import TARGETS
    from edgewright.targets import compiler_of, find_target, is_built_in

    package = compiler_of(name)
    told: dict[str, Any] = {
        **_part(TARGETS, name, {name} if is_built_in(name) else set()),
        "compiler": None if package is None else {"package": package, "version": _version(package)},
        "install": _install(package) if package is not None and _version(package) is None else None,
        "dialect": None,
        "options": {},
        "problem": None,
    }
    try:
        backend = find_target(name)
        told |= {"dialect": backend.dialect, "options": dict(backend.options)}
    except EdgewrightError as error:
        told["problem"] = str(error)
    except ModuleNotFoundError as error:
        told["problem"] = f"It needs the package {error.name}, which is not installed."
    return told


def _tool(tool: Tool) -> dict[str, Any]:
    """Return what there is to tell of a tool file; programs that are there are asked for their version."""
    from edgewright.errors import ToolError
    from edgewright.targets.external.asked import check_programs

    told: dict[str, Any] = {
        "name": tool.name,
        "title": tool.title,
        "version": None,
        "problem": None,
        "options": {name: option.help for name, option in tool.options.items()},
    }
    try:
        told["version"] = check_programs(tool)
    except ToolError as error:
        told["problem"] = str(error)
    return told


def _part(group: str, name: str, own: set[str]) -> dict[str, Any]:
    from edgewright.plugins import package_of

    package = "edgewright" if name in own else package_of(group, name)
    return {"name": name, "package": package, "version": _version(package)}


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _install(package: str) -> str:
    """Return the command that installs a compiler's package: the extra that has it, where one does."""
    from edgewright.cli._health import extras

    for name, extra in extras().items():
        if package in extra["missing"] and name != "dev":
            return str(extra["install"])
    return f"pip install {package}"


def _told(one: dict[str, Any]) -> str:
    """Return the line on a target, or on a tool."""
    if one["problem"]:
        return str(one["problem"])
    if "title" in one:
        return f"{one['title']} {one['version']}".rstrip()
    words = [f"dialect {one['dialect']}"]
    if one["compiler"] is not None:
        compiler = one["compiler"]
        state = compiler["version"] or f"not installed: {one['install']}"
        words.append(f"{compiler['package']} {state}")
    if one["package"] != "edgewright":
        words.append(_whose(one))
    if one["options"]:
        words.append(f"options {', '.join(one['options'])}")
    return "; ".join(words)


def _whose(one: dict[str, Any]) -> str:
    return "built in" if one["package"] == "edgewright" else f"of {one['package']} {one['version'] or ''}".rstrip()


def _indented(rows: list[tuple[str, str]]) -> str:
    return "\n".join(f"  {line}" for line in fields(rows).splitlines())
