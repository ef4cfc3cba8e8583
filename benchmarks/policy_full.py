"""Deploy a pi0.5 of full size with random weights, and time its stages.

    .venv/bin/python benchmarks/policy_full.py --json full.json --table full.md    # 7.2 GB of weights, then the bundle
    .venv/bin/python benchmarks/policy_full.py --size tiny                         # does everything run?

Prints the time and the peaks of memory of `edgewright deploy` and of `edgewright bench`, each a fresh process, and the
stages of a chunk. `peak anonymous` is the highest RssAnon, sampled every 10 ms: what the process needs besides files
that are mapped.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness.machine import CpuTimes, cpu_model, load_between
from harness.runner import SAMPLE_S, anonymous_mb, child_seconds

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import make_full_pi05 as full  # noqa: E402

TOKENIZER = ROOT / "tests" / "goldens" / "policies" / "tokenizer" / "paligemma_tokenizer.model"
STAGES = ("prepare", "vision", "prefix", "denoise", "total")


def watched(arguments: list[str]) -> dict[str, Any]:
    """Run `edgewright` with arguments; returns its seconds, its peaks in MB and what others did meanwhile."""
    before, mine, start = CpuTimes.now(), child_seconds(), time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "edgewright", *arguments], stdin=subprocess.DEVNULL)
    anonymous = resident = 0.0
    try:
        while process.poll() is None:
            anonymous = max(anonymous, anonymous_mb(process.pid))
            resident = max(resident, highest_mb(process.pid))
            time.sleep(SAMPLE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise SystemExit(f"edgewright {arguments[0]} ended with {process.returncode}")
    seconds = time.monotonic() - start
    load = load_between(before, CpuTimes.now(), child_seconds() - mine)
    return {
        "seconds": seconds,
        "peak_anonymous_mb": anonymous,
        "peak_rss_mb": resident,
        "foreign": load.foreign,
        "dirty": load.dirty,
    }


def highest_mb(pid: int) -> float:
    """Return the highest resident memory of a process so far in MB, 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("VmHWM:")), 0.0)


def main() -> None:
    """Make, deploy, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=full.SIZES, default="full")
    parser.add_argument("--recipe", default="policy-int8")
    parser.add_argument("--verify", action="store_true", help="let deploy compare with float32, too")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cameras", type=int, choices=(1, 2, 3), default=3)
    parser.add_argument("--work", type=Path, default=ROOT / ".peers" / "policy_full")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    checkpoint, bundle = args.work / f"{args.size}-checkpoint", args.work / f"{args.size}-{args.recipe}"
    args.work.mkdir(parents=True, exist_ok=True)
    if not checkpoint.exists():
        full.write(checkpoint, full.SIZES[args.size])
    options = ["--recipe", args.recipe, "--tokenizer", str(TOKENIZER), "--discrete-state", "--force"]
    if not args.verify:
        options.append("--no-verify")
    deployed = watched(["deploy", str(checkpoint), "-o", str(bundle), *options])
    speed = args.work / "bench.json"
    counts = ["--repeats", str(args.repeats), "--cameras", str(args.cameras)]
    ran = watched(["bench", str(bundle), *counts, "--json", str(speed)])
    found = {
        "machine": cpu_model(),
        "deploy": deployed,
        "bench": ran,
        "figures": json.loads(speed.read_text()),
        "source_bytes": (checkpoint / "model.safetensors").stat().st_size,
    }
    text = "\n".join([*rows(found, args), ""])
    print(text)
    if args.table:
        args.table.write_text(text)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


def rows(found: dict[str, Any], args: argparse.Namespace) -> list[str]:
    """Return the lines of a Markdown table."""
    deployed, figures = found["deploy"], found["figures"]
    disturbed = " (disturbed)" if deployed["dirty"] or found["bench"]["dirty"] else ""
    lines = [
        f"{found['machine']}; recipe {args.recipe}; {args.cameras} cameras, {figures['prefix_tokens']} tokens in the "
        f"prefix, {figures['steps']} steps{disturbed}.",
        "",
        "| what | figure |",
        "|---|---|",
        f"| checkpoint | {found['source_bytes'] / 1e9:.2f} GB |",
        f"| `edgewright deploy`{'' if args.verify else ' without verification'} | {deployed['seconds']:.0f} s |",
        f"| its peak anonymous memory | {deployed['peak_anonymous_mb'] / 1e3:.2f} GB |",
        f"| its peak resident memory | {deployed['peak_rss_mb'] / 1e3:.2f} GB |",
        f"| bundle | {figures['bundle_bytes'] / 1e9:.2f} GB |",
        f"| load | {figures['load_ms']['median'] / 1e3:.1f} s |",
        f"| peak anonymous memory of a chunk | {found['bench']['peak_anonymous_mb'] / 1e3:.2f} GB |",
    ]
    for name in STAGES:
        one = figures["latencies"][name]
        label = f"denoise x {figures['steps']}" if name == "denoise" else name
        lines.append(f"| {label}, p50 / p95 of {args.repeats} | {one['p50_ms']:.0f} / {one['p95_ms']:.0f} ms |")
    return lines


if __name__ == "__main__":
    main()
