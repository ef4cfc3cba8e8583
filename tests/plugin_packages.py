"""Installs a package of plug-ins into a folder as pip would, without a network or a build back end."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "edgewright-example-target"


def install(project: Path, site: Path) -> Path:
    """Install a pure Python project of the layout `src/PACKAGE` into `site`, with the entry points it declares."""
    declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for package in (project / "src").iterdir():
        shutil.copytree(package, site / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    describe(site, declared["name"], declared["version"], declared["entry-points"])
    return site


def describe(site: Path, name: str, version: str, entry_points: Mapping[str, Mapping[str, str]]) -> None:
    """Write the metadata of an installed package."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()), ""]
    (folder / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def one_module(site: Path, group: str, code: str, name: str = "odd") -> Path:
    """Install a package of one module with one plug-in, which is the module's `plug`."""
    module = f"{name}_module"
    site.mkdir(parents=True, exist_ok=True)
    (site / f"{module}.py").write_text(code, encoding="utf-8")
    describe(site, f"{name}-package", "1.0", {group: {name: f"{module}:plug"}})
    return site
