"""Build engines of TensorRT for RTX on this machine, which needs no GPU, and print what that took as a table.

    .venv/bin/python benchmarks/tensorrt_builds.py --layers 6 --recipes float16,int4,int8,fp8,nvfp4
    .venv/bin/python benchmarks/tensorrt_builds.py models/SmolLM2-135M-Instruct.Q4_1.gguf --recipes stored

Without a checkpoint, one of SmolLM2-135M's widths is made of random weights, and recipes are those of the tests. Each
build is a process of its own: `CPU s` are seconds of one core, `peak MB` is its largest resident size. `products on
codes` are those that the engine's own program computes on narrow codes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
WIDTHS = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 2048,
}
HEADER = "| model | recipe | for | weights MB | engine MB | products on codes | CPU s | peak MB |"


def made(recipe: str, layers: int, folder: Path) -> Path:
    """Write a llama of random weights, quantized by one of the tests' recipes on random tokens."""
    from edgewright.checkpoint import open_checkpoint
    from llama_files import write_llama
    from quantizer_cases import recipe_of, run, samples_of, write
    from tensorrt_cases import RECIPES

    plain = open_checkpoint(write_llama(folder / "plain", num_hidden_layers=layers, **WIDTHS))
    parsed, samples = recipe_of(RECIPES[recipe]), samples_of(plain, count=2, length=64)
    return write(folder / "made", plain, parsed, samples, run(plain, parsed, samples))


def build(source: str, recipe: str, platform: str, context: int, output: Path) -> None:
    """Deploy without verification, and print what this process took."""
    from edgewright.build.pipeline import deploy
    from edgewright.targets.platform import find_platform

    deploy(
        source,
        output,
        recipe=recipe,
        target="tensorrt",
        platform=find_platform(platform),
        options={"builder": "rtx"},
        max_context=context,
        verify=False,
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1e3}))


def row(source: str | None, recipe: str, args: argparse.Namespace, folder: Path) -> str:
    """Build once, in a process of its own; returns a row of the table."""
    platform = "rtx-5090" if "fp4" in recipe or recipe.startswith("mx") else "rtx-4090"
    given = source or str(made(recipe, args.layers, folder))
    output, taken = folder / "bundle", recipe if source else "stored"
    child = [sys.executable, __file__, given, "--child", taken, platform, str(args.context), str(output)]
    done = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True)
    used = json.loads(done.stdout.splitlines()[-1])
    stage = output / "stages" / "llm"
    report = json.loads((stage / "engine.report.json").read_text(encoding="utf-8"))
    sizes = [f"{(stage / name).stat().st_size / 1e6:.0f}" for name in ("weights.bin", "engine.trt")]
    products = ", ".join(f"{count} {kind}" for kind, count in report["products_on_codes"].items()) or "none"
    name = Path(source).name if source else f"llama of SmolLM2's widths, {args.layers} layers"
    cells = [name, recipe, platform, *sizes, products, *(f"{used[key]:.0f}" for key in ("cpu_s", "peak_mb"))]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?")
    parser.add_argument("--recipes", default="float16,int4,int8,fp8,nvfp4")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--child", nargs=4, metavar=("RECIPE", "PLATFORM", "CONTEXT", "OUTPUT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        recipe, platform, context, output = args.child
        build(args.source, recipe, platform, int(context), Path(output))
        return
    print(HEADER)
    print("|" + "---|" * (HEADER.count("|") - 1))
    for recipe in args.recipes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            print(row(args.source, recipe, args, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
