"""Plants faults, verifies the bundles, and counts what the verifier says; healthy bundles are verified, too.

python tools/faults/score.py                       the faults of the scoreboard, its table on stdout
python tools/faults/score.py --write               and the table in docs/faults.md
python tools/faults/score.py --cases llama,phi     all faults of some golden cases
python tools/faults/score.py --part 3              another sample of the faults
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from catalog import family_of, faults, scored
from fault import GOLDENS, Fault, build, make

from edgewright.checkpoint import open_checkpoint
from edgewright.errors import EdgewrightError
from edgewright.verify import verify_bundle

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- scoreboard -->\n", "<!-- end of the scoreboard -->\n"


@dataclass(frozen=True)
class Result:
    """What the verifier said about one fault, and in how many seconds."""

    fault: Fault
    caught: bool
    layer: bool
    kind: bool
    said: str
    seconds: float

    @property
    def good(self) -> bool:
        """Whether all of it is right."""
        return self.caught and self.layer and self.kind


def judge(fault: Fault, folder: Path) -> Result:
    """Plant a fault and verify the bundle; the verifier is told nothing of the fault."""
    make(fault, folder)
    start = time.perf_counter()
    try:
        report = verify_bundle(folder, open_checkpoint(fault.source), threads=1)
    except EdgewrightError as error:
        return Result(fault, True, False, False, f"refused: {error}", time.perf_counter() - start)
    seconds = time.perf_counter() - start
    place = report.localisation
    if place is None:
        return Result(fault, not report.passed, False, False, report.reason() or "passed", seconds)
    layer = place.layer == fault.layer and (fault.layer is not None or place.module == fault.module)
    return Result(fault, not report.passed, layer, place.cause.kind == fault.kind, place.sentence, seconds)


#: What the worker processes work on: they are forked, as faults hold functions.
_WORK: list[Fault] = []


def plant(chosen: Sequence[Fault], jobs: int) -> list[Result]:
    """Judge faults; what is not all right is told on stderr."""
    _WORK[:] = chosen
    results = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        for fault, said in zip(chosen, pool.map(_judge_one, range(len(chosen))), strict=True):
            result = Result(fault, *said)
            results.append(result)
            if not result.good:
                flags = ", ".join(word for word in ("caught", "layer", "kind") if not getattr(result, word))
                print(f"not {flags}: {fault.kind}: {fault.name}\n    {result.said[:400]}", file=sys.stderr, flush=True)
    return results


def _judge_one(index: int) -> tuple[bool, bool, bool, str, float]:
    with tempfile.TemporaryDirectory() as folder:
        result = judge(_WORK[index], Path(folder) / "bundle")
    return result.caught, result.layer, result.kind, result.said, result.seconds


def healthy(cases: Sequence[str], jobs: int) -> tuple[int, list[str]]:
    """Verify unchanged bundles of the cases in both forms; returns how many, and which failed."""
    work = [(case, recipe, form) for case in cases for recipe, form in (("int4", "bundle"), ("float32", "portable"))]
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        reasons = list(pool.map(_verify_one, work))
    failed = [f"{' '.join(one)}: {reason}" for one, reason in zip(work, reasons, strict=True) if reason]
    for line in failed:
        print(f"healthy but failed: {line}", file=sys.stderr, flush=True)
    return len(work), failed


def _verify_one(work: tuple[str, str, str]) -> str:
    case, recipe, form = work
    with tempfile.TemporaryDirectory() as folder:
        bundle = build(case, recipe, form, Path(folder) / "bundle")
        return verify_bundle(bundle, open_checkpoint(GOLDENS / case), threads=1).reason()


def table(results: Sequence[Result], checked: int, failed: Sequence[str], part: int) -> str:
    """Return the scoreboard as Markdown."""
    kinds = sorted({r.fault.kind for r in results})
    lines = ["| class | planted | caught | layer right | class right |", "|---|---|---|---|---|"]
    for kind in [*kinds, "all"]:
        mine = [r for r in results if kind in (r.fault.kind, "all")]
        counts = [sum(getattr(r, name) for r in mine) for name in ("caught", "layer", "kind")]
        lines.append(f"| {kind} | {len(mine)} | {' | '.join(map(str, counts))} |")
    families = {family_of(r.fault.case).split()[0] for r in results}
    slowest = max(r.seconds for r in results)
    lines += [
        "",
        f"{len(results)} faults in bundles of {len(families)} families (sample {part}). Healthy bundles verified: "
        f"{checked}, failed: {len(failed)}. The slowest verification took {slowest:.1f} s.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=lambda text: text.split(","), help="all faults of these golden cases")
    parser.add_argument("--part", type=int, default=0, help="which sample of the faults, 0 is the scoreboard's")
    parser.add_argument("--only", default="", help="only faults whose name has this text")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--write", action="store_true", help="put the table into docs/faults.md")
    parser.add_argument("--no-healthy", action="store_true", help="leave out the healthy bundles")
    args = parser.parse_args()
    chosen = list(faults(args.cases) if args.cases else scored(args.part))
    chosen = [fault for fault in chosen if args.only in fault.name]
    results = plant(chosen, args.jobs)
    cases = sorted({fault.case for fault in chosen})
    checked, failed = (0, []) if args.no_healthy else healthy(cases, args.jobs)
    text = table(results, checked, failed, args.part)
    print(text)
    if args.write:
        page = PAGE.read_text(encoding="utf-8")
        pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
        new = re.sub(pattern, lambda _: f"{BEGIN}\n{text}\n{END}", page, flags=re.DOTALL)
        PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
