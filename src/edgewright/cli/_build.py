"""What the verbs that make a folder have in common: arguments, the plan before, the summary after."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.cli._output import count, folder_bytes, note, print_json, size, verdict_lines
from edgewright.cli._parser import positive_int
from edgewright.cli._policy import add_policy, policy_request
from edgewright.cli._vocabulary import add_vocabulary, vocabulary_request

if TYPE_CHECKING:
    from edgewright.build.sources import Request, Source
    from edgewright.bundle import Manifest

SOURCE_HELP = "a Hugging Face model folder, a .gguf file, or an openpi or LeRobot policy folder"
RECIPE_HELP = "how weights are stored: int4, int8, int4-gptq and other built-in recipes, stored, or a YAML file"


def add_output(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the arguments of a verb that writes a folder."""
    parser.add_argument("-o", "--output", required=True, metavar=name, help="the folder to make")
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_source(parser: argparse.ArgumentParser, recipe: str | None, default: str) -> None:
    """Add the arguments of a verb that builds from a checkpoint.

    `recipe` is the default one, None where it follows from the kind of model; `default` says that in the help.
    """
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    parser.add_argument("--recipe", default=recipe, metavar="NAME|FILE", help=f"{RECIPE_HELP} (default: {default})")
    parser.add_argument(
        "--max-context",
        type=positive_int,
        metavar="TOKENS",
        help="most tokens a dialog may hold (default: the model's own limit, at most 8192)",
    )
    parser.add_argument(
        "--allow-nonfinite",
        action="store_true",
        help="take float weights that hold NaN or infinity as they are; deploy then needs --no-verify",
    )
    parser.add_argument(
        "--requantize",
        action="store_true",
        help="round the weights of a quantized checkpoint a second time where the recipe asks for other formats; the "
        "manifest says what that cost",
    )
    parser.add_argument(
        "--embeddings",
        default="inside",
        choices=("inside", "outside"),
        help="where the embedding table is: in the graph, or in a file of its own, looked up by the runtime "
        "(default: inside)",
    )
    add_vocabulary(parser)
    add_policy(parser)


def request_of(args: argparse.Namespace) -> Request:
    """Return what the arguments of `add_source` ask for; raises UsageError."""
    from edgewright.build.sources import Request

    return Request(
        args.recipe,
        args.max_context,
        vocabulary_request(args),
        args.embeddings,
        policy_request(args),
        args.allow_nonfinite,
        args.requantize,
    )


def print_plan(args: argparse.Namespace, source: Source, goal: str) -> None:
    """Say on stderr what is about to be done; costs nothing beyond the headers that are read anyway."""
    if args.quiet or (Path(args.output).exists() and not args.force):
        return
    checkpoint = source.checkpoint
    parameters = sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
    stored = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    note(
        f"plan: {checkpoint.path} ({source.kind}, {count(parameters)} parameters stored in {size(stored)})"
        f" -> recipe {args.recipe or source.recipe.name} -> {goal} -> {args.output}"
    )


def report_built(args: argparse.Namespace, path: Path, manifest: Manifest, *, reused: bool) -> None:
    """Print what was made."""
    from edgewright.build.card import engines_lines, recipe_line

    if args.json:
        print_json(built_json(path, manifest, reused=reused))
        return
    total = folder_bytes(path)
    made = "unchanged, nothing to do" if reused else "written"
    sys.stdout.write(
        "\n".join(
            [
                f"{path}: {made}, {size(total)} in {len(manifest.files) + 1} files",
                f"weights   {recipe_line(manifest.recipe)}",
                *_vocabulary_lines(manifest),
                *_table_lines(manifest),
                f"target    {manifest.target or 'none (exported, not compiled)'}",
                *(f"engines   {line}" for line in engines_lines(manifest)),
                *verdict_lines(manifest.verdict),
                "",
            ]
        )
    )


def _vocabulary_lines(manifest: Manifest) -> list[str]:
    """Say how many tokens a reduced vocabulary has, and the bytes its tables take."""
    record = manifest.model.get("vocabulary")
    if record is None:
        return []
    sizes = f"tables of {size(record['table_bytes'])} instead of {size(record['full_table_bytes'])}"
    return [f"tokens    {record['kept']} of {record['full']} kept ({record['method']}), {sizes}"]


def _table_lines(manifest: Manifest) -> list[str]:
    """Say where an embedding table outside the graph is, and its bytes."""
    record = manifest.model.get("embedding")
    return [] if record is None else [f"table     {record['file']}, {size(record['bytes'])}"]


def built_json(path: Path, manifest: Manifest, *, reused: bool) -> dict[str, Any]:
    """Return what was made as JSON-compatible values."""
    recipe: Mapping[str, Any] = manifest.recipe
    return {
        "path": str(path),
        "reused": reused,
        "bytes": folder_bytes(path),
        "files": len(manifest.files) + 1,
        "model": dict(manifest.model),
        "recipe": {"name": recipe["name"], **recipe["summary"]},
        "target": manifest.target,
        "engines": {name: entry.runtime for name, entry in manifest.stages.items()},
        "verdict": dict(manifest.verdict),
        "notes": list(manifest.notes),
    }
