"""Compare the memory that `edgewright plan` says with what a session on this machine takes.

    .venv/bin/python benchmarks/plan_memory.py models/SmolLM2-135M-Instruct.Q4_1.gguf --contexts 512,2048,4096

Builds a bundle for each context, and fills its cache in a fresh process, 512 tokens at a time, then three tokens one by
one. `measured` is the highest RssAnon above that of the process before it loaded the bundle, sampled every 2 ms, and
what it has mapped more of files since its libraries were loaded.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from edgewright.bench.memory import AnonymousPeak, status_bytes
from edgewright.plan import Request, make_plan, open_model
from edgewright.runtime.llm import LLM
from edgewright.targets.platform import find_platform

#: Bytes of libraries that loading a bundle maps: those of a bundle whose weights are all copied.
LIBRARIES = 28_000_000
HEADER = "| context | planned MB | measured MB | planned / measured | weights | cache | activations | engine |"


def measure(bundle: Path) -> int:
    """Return the bytes that a full session takes in this process."""
    before, mapped = status_bytes("RssAnon"), status_bytes("RssFile")
    with AnonymousPeak(0.002) as peak:
        llm = LLM.load(bundle, threads=1)
        session = llm.session()
        session.append(np.arange(llm.max_context - 3) % 900 + 5)
        for _ in range(3):
            session.append([7])
    assert session.length == llm.max_context
    read = status_bytes("RssFile")
    if peak.bytes is None or before is None or mapped is None or read is None:
        raise SystemExit("Memory can be measured on Linux only.")
    return peak.bytes - before + max(0, read - mapped - LIBRARIES)


def row(source: str, recipe: str, context: int, folder: Path) -> str:
    """Build, measure and plan for one context; returns a row of the table."""
    cpu, bundle = find_platform("cpu"), folder / f"context-{context}"
    words = ["deploy", source, "-o", str(bundle), "--recipe", recipe, "--max-context", str(context)]
    subprocess.run(
        [sys.executable, "-m", "edgewright", *words, "--no-verify", "--quiet"], check=True, stdout=sys.stderr
    )
    child = [sys.executable, __file__, "--child", str(bundle)]
    measured = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
    memory = make_plan(open_model(source, cpu, recipe=recipe, context=context), cpu, Request()).memory
    parts = (memory.weights, memory.cache, memory.activations + memory.workspace, memory.engine)
    cells = [memory.total, measured]
    spelled = [f"{cell / 1e6:.0f}" for cell in cells] + [f"{memory.total / measured:.2f}"]
    return f"| {' | '.join([f'{context:,}', *spelled, *(f'{part / 1e6:.0f}' for part in parts)])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", help="a language model's checkpoint")
    parser.add_argument("--recipe", default="int4")
    parser.add_argument("--contexts", default="512,2048", help="with commas between")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(measure(args.child)))
        return
    if args.source is None:
        parser.error("give a checkpoint")
    print("\n".join([HEADER, "|" + "---|" * HEADER.count(" | ") + "---|"]))
    with tempfile.TemporaryDirectory() as folder:
        for context in map(int, args.contexts.split(",")):
            print(row(args.source, args.recipe, context, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
