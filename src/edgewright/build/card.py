"""The model card in a bundle: written from the manifest, so that it says nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewright.bundle import Manifest


def recipe_line(recipe: Mapping[str, Any]) -> str:
    """Return what a manifest's recipe applied, in words."""
    summary = recipe["summary"]
    formats = ", ".join(f"{count} x {name}" for name, count in sorted(summary["formats"].items()))
    return f"{formats}; {summary['bit_exact']} of {summary['modules']} taken over bit-exactly"


def model_card(manifest: Manifest) -> str:
    """Return the card as Markdown."""
    model, recipe, verdict = manifest.model, manifest.recipe, manifest.verdict
    lines = [
        f"# {manifest.source['name']} ({recipe['name']})",
        "",
        "| | |",
        "|---|---|",
        f"| model type | `{model['model_type']}`, {model['parameters']:,} parameters, {model['layers']} layers |",
        f"| context | {model['max_context']} tokens |",
        f"| weights | {recipe_line(recipe)} |",
        f"| target | {manifest.target or 'none (exported, not compiled)'} |",
        f"| made with | {', '.join(f'{name} {version}' for name, version in manifest.versions.items())} |",
        f"| verdict | **{verdict['status']}** |",
        "",
    ]
    levels: Mapping[str, Mapping[str, Any]] = verdict.get("levels", {})
    if levels:
        lines += ["## Verification", "", "| level | result | figures |", "|---|---|---|"]
        lines += [f"| {name} | {level['status']} | {level['summary']} |" for name, level in levels.items()]
        lines.append("")
    if manifest.notes:
        lines += ["## Notes", "", *(f"- {note}" for note in manifest.notes), ""]
    lines += ["## Source", ""]
    lines += [
        f"- `{name}`: {entry['bytes']:,} bytes, sha256 `{entry['sha256']}`"
        for name, entry in manifest.source["files"].items()
    ]
    lines += ["", "Run it: `edgewright run BUNDLE --prompt TEXT`.", ""]
    return "\n".join(lines)
