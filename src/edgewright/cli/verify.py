"""`edgewright verify`: is the bundle's engine right, and where is it wrong?"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.cli._kinds import refuse_foreign
from edgewright.cli._output import note, print_json, verdict_lines
from edgewright.cli._policy import add_memory, add_policy_files
from edgewright.cli._progress import progress_for
from edgewright.errors import OutputError, UsageError

if TYPE_CHECKING:
    from edgewright.bundle import Manifest
    from edgewright.progress import Progress
    from edgewright.verify import Report

NAME = "verify"
HELP = "Compare a bundle with its checkpoint, a golden or another bundle; say where, when and why they differ."

#: The flags that only policies have, and how many observations of a folder are compared at once.
POLICY_ONLY = ("--statistics", "--tokenizer", "--observations", "--memory")
OBSERVATIONS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", metavar="BUNDLE", help="the folder that deploy, compile or export wrote")
    parser.add_argument(
        "--against",
        metavar="CHECKPOINT|GOLDEN|BUNDLE",
        help="what to compare with: the checkpoint it was made from, a golden (expected.npz), or another bundle; "
        "without it only the files' digests are checked",
    )
    parser.add_argument(
        "--live",
        metavar="PYTHON",
        help="the python of an environment with torch and transformers: compare the checkpoint's graph with it, too",
    )
    group = parser.add_argument_group("robot policies")
    add_policy_files(group)
    group.add_argument("--observations", metavar="FOLDER", help="observations to compare on (default: seeded ones)")
    add_memory(group)
    parser.add_argument("--page", metavar="FILE", help="write the report as an HTML page")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Verify; returns 1 when the engine is wrong."""
    from edgewright.bundle import check_files, read_manifest

    folder = Path(args.bundle)
    progress = progress_for(quiet=args.quiet)
    manifest = read_manifest(folder)
    if args.against is None:
        if args.live or args.page or any(flag in args.given for flag in POLICY_ONLY):
            raise UsageError(
                "--live, --page and what policies are compared with need --against: without it no numbers are compared."
            )
        with progress.step("check files"):
            check_files(folder, manifest)
        return _files_only(args, manifest)

    report = _compared(args, folder, progress, policy=manifest.model.get("policy") is not None)
    data = report.to_json()
    if args.json:
        print_json(data)
    else:
        print("\n".join([*verdict_lines(data), *_place_lines(data.get("localisation"))]))
    if args.page:
        _write_page(Path(args.page), folder, manifest, data)
    if data.get("against", {}).get("kind") != "bundle":  # another bundle is no measure of right and wrong
        _record(folder, manifest, data)
    if report.passed:
        return 0
    note(f"edgewright: error: the bundle failed verification: {report.reason()}")
    return 1


def _compared(args: argparse.Namespace, folder: Path, progress: Progress, *, policy: bool) -> Report:
    """Compare a bundle with what `--against` names; raises UsageError on flags of the other kind of model."""
    refuse_foreign(args, ("--live", "--page") if policy else POLICY_ONLY, policy=policy)
    if not policy:
        from edgewright.verify import verify

        return verify(folder, args.against, live=args.live, progress=progress)
    from edgewright.verify.policy_against import verify_policy_against

    return verify_policy_against(
        folder,
        args.against,
        statistics=args.statistics,
        tokenizer=args.tokenizer,
        observations=_observations(args.observations) if args.observations else None,
        memory_bytes=args.memory,
        progress=progress,
    )


def _observations(folder: str) -> list[dict[str, Any]]:
    """Return the first few observations of a folder, as a policy takes them."""
    from edgewright.calibration.arrays import TEXT, text_of
    from edgewright.quantizer.policy_observations import observation_samples

    found = []
    for sample in observation_samples(folder, OBSERVATIONS, 0):
        seen: dict[str, Any] = {name: values for name, values in sample.items() if name not in (TEXT, "action")}
        found.append({**seen, "task": text_of(sample)} if TEXT in sample else seen)
    return found


def _files_only(args: argparse.Namespace, manifest: Manifest) -> int:
    count = len(manifest.files)
    if args.json:
        print_json({"status": "not checked", "files": count, "recorded": dict(manifest.verdict)})
    else:
        print(f"files     all {count} as they were written")
        print("verdict   cannot check here: the numbers were not compared, give --against CHECKPOINT")
        print(f"recorded  {manifest.verdict['status']}")
    return 0


def _place_lines(place: Mapping[str, Any] | None) -> list[str]:
    """Return where, when and why in a few lines."""
    if place is None:
        return []
    where, cause = place["where"], place["cause"]
    proof = f" (error left: {cause['error_left']:g})" if cause["error_left"] else ""
    lines = [
        f"where     {where['place']} ({where['op']}, in {where['file'] or 'the weight file'})",
        f"when      {place['when']['words']}",
        f"why       {cause['class']}: {cause['words']}{proof}",
    ]
    return lines + [f"note      {line}" for line in place["notes"]]


def _write_page(path: Path, folder: Path, manifest: Manifest, data: Mapping[str, Any]) -> None:
    from edgewright.files import write_text
    from edgewright.verify.page import page

    write_text(path, page(folder.name, manifest, data))


def _record(folder: Path, manifest: Manifest, report: Mapping[str, Any]) -> None:
    """Write the verdict into the bundle, where that is allowed."""
    from edgewright.build.pipeline import record_verdict

    try:
        record_verdict(folder, manifest, report)
    except (OSError, OutputError) as error:
        note(f"note: the verdict was not recorded in the bundle: {error}")
