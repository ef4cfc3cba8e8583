"""Compare what quantization costs: edgewright, llama.cpp and OpenVINO against float32 on the same held-out text.

    python benchmarks/quality.py --model smollm2 --peers llama_cpp,openvino --ours int4,my-recipe.yaml

Makes what is missing (environments, checkpoints, quantized files), measures it once, prints a Markdown table. Needs
only the standard library, Linux and Python 3.11. See README.md beside it.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from harness import artefacts, quality_table
from harness.evaluation import Setting
from harness.machine import cpu_model
from harness.peers import BENCHMARKS, ROOT
from harness.quality_roster import CONTENDERS, MODES, Contender, ours, peers
from harness.runner import WorkerError
from race import only_one_race

MODELS = ("smollm2", "gemma3-270m", "trained")
CALIBRATION = ROOT / "src" / "edgewright" / "calibration" / "texts" / "english.txt"


def line(setting: Setting, contender: Contender, modes: list[str]) -> dict[str, Any]:
    """Return everything the table says of a contender."""
    figures = {mode: setting.measure(contender, mode) if mode in modes else None for mode in MODES}
    return {"name": contender.name, **setting.contents(contender), "quality": figures}


def measure(setting: Setting, contenders: list[Contender], modes: list[str], failures: list[str]) -> dict[str, Any]:
    """Return one model's part of the result; a contender that fails is left out and noted."""
    reference = setting.reference()
    lines = []
    for contender in contenders:
        try:
            lines.append(line(setting, contender, modes))
        except (WorkerError, OSError) as error:
            failures.append(f"{contender.name} of {setting.model}: {error}")
    return {"perplexity": reference["perplexity"], "windows": reference["windows"], "lines": lines}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default=",".join(MODELS), metavar="NAMES", help="default: %(default)s")
    parser.add_argument("--peers", metavar="NAMES", help="parts of names, or environments; '' for none; default: all")
    parser.add_argument(
        "--ours", default="", metavar="SOURCES", help="recipes (name or file), quantized folders or bundles; NAME=..."
    )
    parser.add_argument("--text", type=Path, default=BENCHMARKS / "data" / "heldout.txt", help="held-out text")
    parser.add_argument("--calibration", type=Path, default=CALIBRATION, help="calibration text of the peers")
    parser.add_argument("--windows", type=int, default=16, help="most windows of 512 tokens (default: 16)")
    parser.add_argument("--samples", type=int, default=64, help="calibration windows of 512 tokens (default: 64)")
    parser.add_argument("--modes", default=",".join(MODES), help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything, as it comes")
    parser.add_argument("--table", type=Path, metavar="FILE.md", help="write the tables (they are printed anyway)")
    parser.add_argument("--fresh", metavar="PEER", help="make this peer's files anew (edgewright, after a change)")
    parser.add_argument("--list", action="store_true", help="list the peers' lines")
    default = ROOT / ".venv" / "bin" / "python"
    parser.add_argument("--edgewright-python", type=Path, default=default, help="default: .venv/bin/python")
    args = parser.parse_args()
    if unknown := set(args.modes.split(",")) - set(MODES):
        parser.error(f"unknown modes {', '.join(sorted(unknown))}; there are {', '.join(MODES)}")
    if unknown := set(args.model.split(",")) - set(MODELS):
        parser.error(f"unknown models {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    return args


def main() -> int:
    args = parse()
    if args.list:
        print("\n".join(f"{contender.entry.peer:16} {contender.name}" for contender in CONTENDERS))
        return 0
    chosen = peers(None if args.peers is None else [name for name in args.peers.split(",") if name])
    chosen += [ours(source) for source in args.ours.split(",") if source]
    failures: list[str] = []
    result: dict[str, Any] = {"cpu": cpu_model(), "text": args.text.name, "models": {}, "failures": failures}
    with only_one_race():
        if args.fresh:
            artefacts.forget(args.fresh)
        for model in args.model.split(","):
            text, calibration = args.text.resolve(), args.calibration.resolve()
            counts = (args.windows, args.samples, args.threads)
            setting = Setting(model, text, calibration, *counts, args.edgewright_python)
            try:
                result["models"][model] = measure(setting, chosen, args.modes.split(","), failures)
            except (WorkerError, OSError) as error:
                failures.append(f"{model}: {error}")
            if args.json:
                args.json.write_text(json.dumps(result, indent=1) + "\n")
    text = quality_table.document(result)
    if args.table:
        args.table.write_text(text, encoding="utf-8")
    print(text)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
