"""The model card in a bundle: written from the manifest, so that it says nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewright.bundle import Manifest
from edgewright.bundle.machine import ENGINES


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
        *(_policy_rows(model) if "policy" in model else _llm_rows(model)),
        f"| weights | {recipe_line(recipe)} |",
        f"| target | {manifest.target or 'none (exported, not compiled)'} |",
        *(f"| engines | {line} |" for line in engines_lines(manifest)),
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
    how = "--observation FILE" if "policy" in model else "--prompt TEXT"
    lines += ["", f"Run it: `edgewright run BUNDLE {how}`.", ""]
    return "\n".join(lines)


def engines_lines(manifest: Manifest) -> list[str]:
    """Return which engines run the stages of a bundle, in a line; none where that is ONNX Runtime for all."""
    runtimes = {name: entry.runtime for name, entry in manifest.stages.items()}
    if set(runtimes.values()) <= {"onnxruntime"}:
        return []
    return [", ".join(f"{name} on {ENGINES.get(runtime, runtime)}" for name, runtime in runtimes.items())]


def _llm_rows(model: Mapping[str, Any]) -> list[str]:
    return [
        f"| model type | `{model['model_type']}`, {model['parameters']:,} parameters, {model['layers']} layers |",
        f"| context | {model['max_context']} tokens |",
    ]


def _policy_rows(model: Mapping[str, Any]) -> list[str]:
    spec, layers = model["policy"], model["layers"]
    shown = ", ".join(f"{count} {name}" for name, count in layers.items())
    state = f"{spec['state_dim']} numbers of state, " if spec["state_dim"] else ""
    return [
        f"| policy | `{model['model_type']}`, {model['parameters']:,} parameters, layers: {shown} |",
        f"| cameras | {', '.join(f'`{name}`' for name in spec['cameras'])}; needed: {len(spec['required_cameras'])} |",
        f"| takes | {state}a prompt of at most {spec['max_tokens']} tokens ({spec['convention']} conventions) |",
        f"| gives | {spec['horizon']} actions of {spec['action_dim']} numbers in {spec['steps']} denoise steps |",
        f"| features | {features_line(model['features'])} |",
    ]


def features_line(features: Mapping[str, bool | str]) -> str:
    """Return a policy's features in words: those that are on, and the choices."""
    on = [name if value is True else f"{name} {value}" for name, value in features.items() if value]
    off = [name for name, value in features.items() if not value]
    return ", ".join(on) + (f"; off: {', '.join(off)}" if off else "")
