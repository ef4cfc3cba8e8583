"""`edgewright quantize`: a quantized checkpoint and what it cost, or the table of what would be done."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._build import RECIPE_HELP, SOURCE_HELP
from edgewright.cli._output import folder_bytes, note, print_json, size, table
from edgewright.cli._parser import positive_int, seed
from edgewright.cli._platform import add_platform, check_platform
from edgewright.cli._policy import add_policy
from edgewright.cli._policy_source import policy_options
from edgewright.cli._progress import progress_for
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.checkpoint.policy import PolicyOptions
    from edgewright.quant.recipe import Recipe
    from edgewright.quantizer.report import ModuleReport

NAME = "quantize"
HELP = "Make a quantized checkpoint: calibrate, round, report what was lost; --dry-run shows the plan."
_HEADER = ("module", "kind", "weight", "activations", "algorithm", "bytes", "saved", "decided at")
LAYOUTS = ("edgewright", "modelopt", "compressed-tensors")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    parser.add_argument("--recipe", required=True, metavar="NAME|FILE", help=RECIPE_HELP)
    parser.add_argument("-o", "--output", metavar="FOLDER", help="the folder to make (not with --dry-run)")
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--dry-run", action="store_true", help="print what every module would get, and stop")
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default=LAYOUTS[0],
        help="how the folder is laid out: edgewright (lossless, for deploy), or as another tool reads it "
        "(default: edgewright)",
    )
    parser.add_argument("--data", metavar="SPEC", help="what to calibrate on instead of the recipe's data")
    parser.add_argument("--sequences", type=positive_int, metavar="N", help="most sequences to calibrate on")
    parser.add_argument("--length", type=positive_int, metavar="TOKENS", help="most tokens of a sequence")
    parser.add_argument("--seed", type=seed, metavar="S", help="decides which parts of the data are taken")
    add_platform(parser)
    parser.add_argument("--page", metavar="FILE", help="write the report as an HTML page as well")
    parser.add_argument("--worst", type=positive_int, default=10, metavar="K", help="modules to list (default: 10)")
    add_policy(parser)


def run(args: argparse.Namespace) -> int:
    """Quantize, or show what would be done."""
    from edgewright.build.key import policy_recipe, stage_recipe
    from edgewright.checkpoint.policy import is_policy
    from edgewright.quant.recipe_file import load_recipe

    policy = is_policy(args.source)
    options = policy_options(args, policy=policy)
    loaded = load_recipe(args.recipe)
    recipe = _with_data(args, policy_recipe(loaded) if policy else stage_recipe(loaded), policy=policy)
    check_platform(args, recipe)
    if args.dry_run:
        return _dry_run_policy(args, recipe, options) if policy else _dry_run(args, recipe)
    if args.page is not None and Path(args.page).is_dir():
        raise UsageError(f"--page {args.page} is a folder: give the name of a file.")
    if args.output is None:
        raise UsageError("quantize needs -o FOLDER, or --dry-run; see `edgewright quantize --help`.")
    from edgewright.build.quantized import quantize_checkpoint

    done = quantize_checkpoint(
        args.source,
        args.output,
        recipe=recipe,
        layout=args.layout,
        policy=options,
        force=args.force,
        progress=progress_for(quiet=args.quiet),
    )
    if args.json:
        modules = [{k: v for k, v in r.to_json().items() if k != "histogram"} for r in done.reports]
        written = {"path": str(done.path), "bytes": folder_bytes(done.path), "notes": list(done.notes)}
        print_json({**written, "recipe": recipe.name, "modules": modules, "calibration": dict(done.record)})
    else:
        for text in (*done.record.get("notes", ()), *done.notes):
            note(f"note: {text}", quiet=args.quiet)
        _print(args, done.path, done.reports)
    if args.page is not None:
        from edgewright.quantizer.page import write_page

        write_page(Path(args.page), recipe.name, done.reports, done.record)
    return 0


def _with_data(args: argparse.Namespace, recipe: Recipe, *, policy: bool) -> Recipe:
    """Return the recipe with the data of the command line; raises UsageError where it looks at none."""
    from edgewright.build.quantized import with_data

    if policy and args.length is not None:
        raise UsageError("A robot policy's prompts are as long as they are, so --length has no meaning: leave it out.")
    given = {"source": args.data, "sequences": args.sequences, "length": args.length, "seed": args.seed}
    changes = {key: value for key, value in given.items() if value is not None}
    if changes and not recipe.needs_data:
        flags = ", ".join(f"--{'data' if key == 'source' else key}" for key in changes)
        raise UsageError(
            f"The recipe {recipe.name} looks at no data, so that {flags} would change nothing: leave it out, or take a "
            "recipe that calibrates, such as int4-gptq."
        )
    return with_data(recipe, replace(recipe.data, **changes)) if changes else recipe


def _print(args: argparse.Namespace, path: Path, reports: tuple[ModuleReport, ...]) -> None:
    from edgewright.quantizer.report import worst

    stored, plain = sum(r.bytes for r in reports), sum(r.float_bytes for r in reports)
    lines = [
        f"{path}: written, {size(folder_bytes(path))}",
        f"weights   {len(reports)} modules, {size(stored)} instead of {size(plain)} in float32",
    ]
    if dead := {report.module: report.dead_inputs for report in reports if report.dead_inputs}:
        lines.append(f"dead      {sum(dead.values())} inputs of {len(dead)} modules are always zero on this data")
    lines.append(f"worst {min(args.worst, len(reports))} by output error:")
    rows = [
        [r.module, r.format, r.algorithm, _db(r.weight_sqnr_db), _db(r.output_sqnr_db), f"{r.cosine:.5f}"]
        for r in worst(reports, args.worst)
    ]
    lines.append(table(["module", "format", "algorithm", "weight SQNR", "output SQNR", "cosine"], rows))
    sys.stdout.write("\n".join([*lines, ""]))


def _db(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} dB"


def _dry_run(args: argparse.Namespace, recipe: Recipe) -> int:
    from edgewright.checkpoint import open_checkpoint
    from edgewright.quantizer.preview import preview

    found = preview(open_checkpoint(args.source), recipe)
    if args.json:
        sums = {"bytes": found.bytes, "float_bytes": found.float_bytes, "kv": found.kv}
        print_json({"recipe": recipe.name, "modules": found.rows, **sums})
        return 0
    sys.stdout.write("\n".join([table(_HEADER, found.table()), found.summary(), ""]))
    return 0


def _dry_run_policy(args: argparse.Namespace, recipe: Recipe, options: PolicyOptions | None) -> int:
    """Show what every module of every stage would get."""
    from edgewright.checkpoint.policy import open_policy
    from edgewright.quantizer.preview import preview_policy

    stages = preview_policy(open_policy(args.source, options), recipe)
    if args.json:
        found = {
            name: {"modules": one.rows, "bytes": one.bytes, "float_bytes": one.float_bytes, "kv": one.kv}
            for name, one in stages.items()
        }
        print_json({"recipe": recipe.name, "stages": found})
        return 0
    for name, one in stages.items():
        sys.stdout.write("\n".join([f"{name}:", table(_HEADER, one.table()), one.summary(), "", ""]))
    return 0
