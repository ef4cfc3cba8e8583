"""`edgewright profile`: where the time of a stage goes, layer by layer; here, or in a file that an engine wrote."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._output import note, print_json
from edgewright.cli._parser import positive_int, seed
from edgewright.cli._platform import add_platform, asked_platform
from edgewright.cli._policy import gigabytes, whole
from edgewright.cli._profile_table import diff_lines, profile_lines
from edgewright.cli._progress import progress_for
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.profile.profile import Peaks, Profile

NAME = "profile"
HELP = (
    "Time a bundle's stages layer by layer, named by the model's modules, beside the work that the plan counts.\n"
    "With --file the layers are those that an engine timed elsewhere; --diff compares two profiles."
)
#: The flags that have a meaning only where something is run here, only for a file, and only without a comparison.
RUN_FLAGS = ("--repeats", "--threads", "--seed", "--no-memory", "--no-peaks")
FILE_FLAGS = ("--kind", "--layer-info", "--times")
PROFILE_FLAGS = (
    *RUN_FLAGS,
    *FILE_FLAGS,
    *("--file", "--stage", "--checkpoint", "--tokens", "--past", "--decode-after", "--trace", "--page"),
    *("--for", "--platform-file", "--bandwidth"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", nargs="?", metavar="BUNDLE", help="the folder that deploy wrote")
    parser.add_argument(
        "--stage", metavar="NAME", help="of a policy this stage alone; of a file the stage that it is of"
    )
    parser.add_argument("--repeats", type=positive_int, metavar="N", help="runs of each phase (default: 20)")
    parser.add_argument("--threads", type=positive_int, metavar="N", help="cores to use (default: the physical ones)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the random inputs (default: 0)")
    parser.add_argument("--no-memory", action="store_true", help="don't measure the peak of memory")
    parser.add_argument("--no-peaks", action="store_true", help="don't measure what this machine can do")
    parser.add_argument(
        "--checkpoint", metavar="SOURCE", help="the bundle's source, to count what its graph can't tell"
    )
    group = parser.add_argument_group("language models")
    group.add_argument("--tokens", type=positive_int, metavar="N", help="tokens of the prefill (default: 512)")
    group.add_argument("--past", type=whole, metavar="N", help="tokens that the caches hold before it (default: 0)")
    group.add_argument("--decode-after", type=positive_int, metavar="N", help="tokens before decode (default: 32)")
    group = parser.add_argument_group("the machine's peaks (default: measured)")
    add_platform(group, "what this platform can do")
    group.add_argument("--bandwidth", type=gigabytes, metavar="GB/s", help="memory bandwidth, with a platform")
    group = parser.add_argument_group("a file that an engine wrote")
    group.add_argument("--file", type=Path, metavar="FILE", help="read the times from there; BUNDLE names the layers")
    group.add_argument("--kind", choices=("ort", "trtexec", "qnn"), help="what wrote it")
    group.add_argument("--layer-info", type=Path, metavar="FILE", help="what trtexec --exportLayerInfo wrote")
    group.add_argument("--times", type=Path, metavar="FILE", help="what trtexec --exportTimes wrote")
    group = parser.add_argument_group("what is printed and written")
    group.add_argument("--diff", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="compare two files of --json")
    group.add_argument(
        "--by", choices=("group", "module", "op", "layer"), help="rows (default: group; module in a diff)"
    )
    group.add_argument("--top", type=positive_int, default=20, metavar="N", help="rows of a table (default: 20)")
    group.add_argument("--json", metavar="FILE", help="write JSON there; '-' prints it instead of the tables")
    group.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for Perfetto or chrome://tracing")
    group.add_argument("--page", type=Path, metavar="FILE", help="write an HTML page")


def run(args: argparse.Namespace) -> int:
    """Profile, or compare."""
    if args.diff is not None:
        return _diff(args)
    profile = _from_file(args) if args.file is not None else _here(args)
    from edgewright.profile.document import to_json

    for text in profile.notes:
        note(f"note: {text}", quiet=args.quiet)
    _write(args, profile)
    if args.json == "-":
        print_json(to_json(profile))
        return 0
    sys.stdout.write("\n".join([*profile_lines(profile, args.by or "group", args.top), ""]))
    return 0


def _here(args: argparse.Namespace) -> Profile:
    """Run the stages of a bundle."""
    _refuse(args, FILE_FLAGS, "a --file")
    if args.bundle is None:
        raise UsageError("profile needs a BUNDLE, a --file or --diff BEFORE AFTER; see `edgewright profile --help`.")
    from edgewright.profile.measure import profile_bundle
    from edgewright.profile.schedule import REPEATS, Request

    request = Request(
        tokens=args.tokens,
        past=args.past or 0,
        after=args.decode_after,
        repeats=REPEATS if args.repeats is None else args.repeats,
        stages=None if args.stage is None else (args.stage,),
        seed=args.seed,
    )
    _refuse_sizes(args)

    def peaks() -> Peaks:
        from edgewright.profile.peaks import measured_peaks

        return _platform_peaks(args) or measured_peaks(args.threads)

    if args.no_peaks and (args.platform or args.platform_file):
        raise UsageError("--no-peaks leaves out what --for or --platform-file asks for: give one of them.")
    _platform_peaks(args)  # what is wrong with a platform is said before anything runs
    return profile_bundle(
        args.bundle,
        request,
        threads=args.threads,
        peaks=None if args.no_peaks else peaks,
        memory=not args.no_memory,
        checkpoint=args.checkpoint,
        progress=progress_for(quiet=args.quiet),
    )


def _from_file(args: argparse.Namespace) -> Profile:
    """Read what an engine wrote."""
    _refuse(args, RUN_FLAGS, "runs on this machine")
    if args.kind is None:
        raise UsageError("--file needs --kind: ort, trtexec or qnn.")
    from edgewright.profile.from_file import File, Ran, profile_file
    from edgewright.profile.profile import Peaks

    if args.bundle is not None:
        _refuse_sizes(args)
    file = File(args.file, args.kind, args.layer_info, args.times)
    ran = Ran(args.stage, args.tokens, args.past, args.decode_after)
    bundle = None if args.bundle is None else Path(args.bundle)
    return profile_file(file, bundle, ran, _platform_peaks(args) or Peaks(""), args.checkpoint)


def _platform_peaks(args: argparse.Namespace) -> Peaks | None:
    platform = asked_platform(args)
    if platform is None:
        if args.bandwidth is not None:
            raise UsageError("--bandwidth belongs to a platform: give --for or --platform-file as well.")
        return None
    from edgewright.profile.peaks import platform_peaks

    return platform_peaks(platform, args.bandwidth)


def _refuse(args: argparse.Namespace, flags: tuple[str, ...], what: str) -> None:
    if wrong := [flag for flag in flags if flag in args.given]:
        raise UsageError(f"{' and '.join(wrong)} belong{'s' if len(wrong) == 1 else ''} to {what}: leave that out.")


def _refuse_sizes(args: argparse.Namespace) -> None:
    """Refuse the flags of language models for a policy."""
    from edgewright.cli._kinds import holds_policy, refuse_foreign

    if holds_policy(args.bundle):
        refuse_foreign(args, ("--tokens", "--past", "--decode-after"), policy=True)


def _write(args: argparse.Namespace, profile: Profile) -> None:
    """Write the files that are asked for."""
    from edgewright.files import canonical_json, os_errors
    from edgewright.profile.document import to_json
    from edgewright.profile.trace import chrome_trace

    if args.json is not None and args.json != "-":
        with os_errors(args.json):
            Path(args.json).write_bytes(canonical_json(to_json(profile)))
    if args.trace is not None:
        with os_errors(str(args.trace)):
            args.trace.write_bytes(canonical_json(chrome_trace(profile)))
    if args.page is not None:
        from edgewright.profile.page import write_page

        write_page(args.page, profile)


def _diff(args: argparse.Namespace) -> int:
    """Compare two profiles."""
    if args.bundle is not None:
        raise UsageError("--diff compares two files, so there is no bundle to profile: leave one of them out.")
    _refuse(args, PROFILE_FLAGS, "a profile, and --diff compares two that there are")
    from dataclasses import asdict

    from edgewright.files import canonical_json, os_errors
    from edgewright.profile.diff import diff
    from edgewright.profile.document import read_profile

    before, after = (read_profile(path) for path in args.diff)
    phases = diff(before, after, args.by or "module")
    names = [[phase.name for phase in one.phases] for one in (before, after)]
    for path, mine, others in zip(args.diff, names, reversed(names), strict=True):
        if alone := [name for name in mine if name not in others]:
            note(f"note: only {path.name} has {', '.join(alone)}", quiet=args.quiet)
    data = {"before": before.bundle, "after": after.bundle, "phases": [asdict(phase) for phase in phases]}
    if args.json == "-":
        print_json(data)
        return 0
    if args.json:
        with os_errors(args.json):
            Path(args.json).write_bytes(canonical_json(data))
    sys.stdout.write("\n".join([*diff_lines(phases, args.top), ""]))
    return 0
