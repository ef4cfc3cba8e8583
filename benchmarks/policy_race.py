"""Race edgewright against lerobot's PyTorch on a pi0.5 of random weights: eager, torch.compile, and every rewrite.

    .venv/bin/python benchmarks/policy_race.py --lerobot-python ENV/bin/python --lerobot DIR --openpi DIR \\
        --rounds 10 --json policy.json --table policy.md
    .venv/bin/python benchmarks/policy_race.py --size tiny --rounds 2 --lerobot-python ...   # does everything run?
    .venv/bin/python benchmarks/policy_race.py --rows float32,policy-int8                    # ours alone, some rows

The environment and the checkouts are those of tools/goldens/make_policies.py. Every contender is a process of its own
that stays loaded; they take turns, forward in one round and backward in the next, on the same cores, weights,
observation and noise. See README.md beside it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.build.engines import engine_request
from edgewright.build.pipeline import deploy
from edgewright.build.sources import PolicyRequest
from edgewright.checkpoint.policy import PolicyOptions, open_policy
from edgewright.graph.features import FEATURES, spelled
from edgewright.runtime.policy import Policy
from edgewright.runtime.policy.observation import prepare
from harness.machine import CpuTimes, cpu_model, load_between

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import make_full_pi05 as full  # noqa: E402

TOKENIZER = ROOT / "tests" / "goldens" / "policies" / "tokenizer" / "paligemma_tokenizer.model"
PROMPT = "pick up the red cup and put it into the box"
EAGER = "lerobot eager"
PAUSE_S = 0.3
STAGES = ("prepare", "vision", "prefix", "denoise")


@dataclass
class Row:
    """A contender: its process, and what its runs gave."""

    name: str
    process: Any
    ready: dict[str, Any]
    bundle_mb: float | None = None
    times: list[dict[str, Any]] = field(default_factory=list)
    actions: Any = None

    def ask(self, chunks: int) -> dict[str, Any]:
        """Infer some chunks."""
        print(json.dumps({"chunks": chunks}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}")
        return dict(json.loads(line))


def variants() -> dict[str, dict[str, bool | str]]:
    """Return the features of each row of ours in float32: as they are by default, all off, and each one otherwise."""
    known = [feature for feature in FEATURES.values() if not feature.kinds or "pi05" in feature.kinds]
    off: dict[str, bool | str] = {
        feature.name: feature.values[-1] if feature.values[-1] is False else "step" for feature in known
    }
    found: dict[str, dict[str, bool | str]] = {"float32": {}}
    found["float32, every rewrite off"] = off
    for feature in known:
        for value in feature.values:
            if value != feature.default:
                found[f"float32, {spelled(feature.name, value)}"] = _with_required(feature.name, value)
    return found


def _with_required(name: str, value: bool | str) -> dict[str, bool | str]:
    """Return a value with what it, and the defaults of others, need."""
    asked: dict[str, bool | str] = {name: value}
    for feature in FEATURES.values():
        needed = feature.requires.get(asked.get(feature.name, feature.default), {})
        for other, wanted in needed.items():
            if asked.get(other, FEATURES[other].default) != wanted:
                asked[other] = wanted
    return asked


class Race:
    """One race: what is made for it, its contenders and its table."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.size = args, full.SIZES[args.size]
        self.folder = args.work / args.size
        self.options = PolicyOptions(tokenizer=TOKENIZER, discrete_state=True)
        self.rows: list[Row] = []

    def run(self) -> None:
        """Prepare, race, and write."""
        self.folder.mkdir(parents=True, exist_ok=True)
        checkpoint = self.folder / "checkpoint"
        if not checkpoint.exists():
            full.write(checkpoint, self.size)
        chosen = self._bundles(checkpoint)
        spec = open_policy(checkpoint, self.options).spec
        self._inputs(next(iter(chosen.values())), spec)
        try:
            self._start(checkpoint, chosen, spec)
            for number in range(self.args.rounds):
                self._round(number)
        finally:
            for row in self.rows:
                row.process.stdin.close()
                row.process.wait()
        self._write()

    def _bundles(self, checkpoint: Path) -> dict[str, Path]:
        """Return a bundle for each row of ours."""
        wanted: dict[str, tuple[str, dict[str, bool | str], str | None]]
        wanted = {n: ("float32", f, None) for n, f in variants().items()}
        wanted |= {recipe: (recipe, {}, None) for recipe in self.args.recipes.split(",")}
        for recipe in ("float32", *self.args.recipes.split(",")):
            wanted[f"{recipe}, openvino"] = (recipe, {}, "openvino")
        if self.args.rows:
            names = self.args.rows.split(";")
            if unknown := set(names) - set(wanted):
                raise SystemExit(f"unknown rows {', '.join(unknown)}; known are: {'; '.join(wanted)}")
            wanted = {name: wanted[name] for name in names}
        found = {}
        for name, (recipe, features, engine) in wanted.items():
            folder = self.folder / name.replace(", ", "-").replace(" ", "-")
            print(f"deploy {name}", file=sys.stderr)
            request = PolicyRequest(options=self.options, features=features)
            how: dict[str, Any] = {"policy": request, "engines": engine_request(engine), "verify": False, "force": True}
            found[name] = deploy(checkpoint, folder, recipe=recipe, **how).path
        return found

    def _inputs(self, bundle: Path, spec: Any) -> None:
        """Write the observation, raw and as lerobot's model takes it, and the noise."""
        random = np.random.default_rng(self.args.seed)
        names = spec.cameras[: self.args.cameras]
        images = {name: random.integers(0, 256, (*spec.image_size, 3), np.uint8) for name in names}
        policy = Policy.load(bundle, threads=1, check=False)
        state = np.mean([policy.statistics.state["q01"], policy.statistics.state["q99"]], axis=0).astype(np.float32)
        observation = {"images": images, "state": state, "prompt": PROMPT}
        ids = prepare(spec, policy.statistics, policy.tokenizer, observation).token_ids
        tokens = np.zeros(spec.max_tokens, np.int64)
        tokens[: len(ids)] = ids
        np.savez(
            self.folder / "inputs.npz",
            **{f"image.{name}": image for name, image in images.items()},
            state=state,
            prompt=np.array(PROMPT),
            tokens=tokens,
            token_mask=np.arange(spec.max_tokens) < len(ids),
            noise=random.standard_normal((spec.horizon, spec.model_action_dim), np.float32),
        )
        self.tokens = len(ids)

    def _start(self, checkpoint: Path, bundles: dict[str, Path], spec: Any) -> None:
        """Start every contender; each is loaded and warm before the next one starts."""
        args = self.args
        shared = {"cpus": args.cpus, "threads": len(args.cpus), "inputs": str(self.folder / "inputs.npz")}
        theirs = {
            **shared,
            "checkpoint": str(checkpoint),
            "lerobot": str(args.lerobot),
            "openpi": str(args.openpi),
            "sizes": self._sizes(),
            "cameras": spec.cameras,
            "state_dim": spec.state_dim,
            "action_dim": spec.action_dim,
            "horizon": spec.horizon,
            "max_tokens": spec.max_tokens,
        }
        if args.lerobot_python:
            self._add(EAGER, args.lerobot_python, "lerobot", {**theirs, "compile": None})
            for mode in filter(None, args.compile.split(",")):
                self._add(f"lerobot compile {mode}", args.lerobot_python, "lerobot", {**theirs, "compile": mode})
        for name, bundle in bundles.items():
            self._add(name, Path(sys.executable), "ours", {**shared, "bundle": str(bundle)}, bundle)

    def _sizes(self) -> dict[str, int]:
        """Return the sizes under the names of tools/goldens/policies_models.py."""
        size = self.size
        return {
            "image": size.image,
            "vision_width": size.vision_width,
            "vision_layers": size.vision_layers,
            "vision_mlp": size.vision_inner,
            "width": size.width,
            "mlp": size.inner,
            "expert_width": size.expert_width,
            "expert_mlp": size.expert_inner,
            "layers": size.layers,
            "head_dim": size.head_dim,
            "vocab": size.vocab,
        }

    def _add(self, name: str, python: Path, kind: str, job: dict[str, Any], bundle: Path | None = None) -> None:
        print(f"start {name}", file=sys.stderr)
        threads = {name: str(job["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        process = subprocess.Popen(
            [python, Path(__file__).with_name("policy_worker.py"), kind, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if self.args.verbose else subprocess.DEVNULL,
            text=True,
            env=os.environ | threads | {"HF_HUB_OFFLINE": "1"},
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{name} ended with {process.wait()}: --verbose shows what it printed")
        size = None if bundle is None else sum(p.stat().st_size for p in bundle.rglob("*") if p.is_file()) / 1e6
        self.rows.append(Row(name, process, json.loads(line), size))

    def _round(self, number: int) -> None:
        for row in self.rows if number % 2 == 0 else reversed(self.rows):
            time.sleep(PAUSE_S)  # thread pools of the one before stop spinning
            before, mine = CpuTimes.now(), time.process_time()
            answer = row.ask(self.args.chunks)
            load = load_between(before, CpuTimes.now(), time.process_time() - mine + answer["cpu_s"])
            row.times += [{**times, "dirty": load.dirty, "foreign": load.foreign} for times in answer["times"]]
            row.actions = np.array(answer["actions"])
        print(f"round {number + 1} of {self.args.rounds}", file=sys.stderr)

    def _write(self) -> None:
        reference = next((row for row in self.rows if row.name == EAGER), self.rows[0])
        lines = [line(row, reference) for row in self.rows]
        text = "\n".join([self._head(), "", *table(lines, reference.name), ""])
        print(text)
        if self.args.table:
            self.args.table.write_text(text)
        if self.args.json:
            runs = {
                row.name: {**made, "runs": row.times, **row.ready} for row, made in zip(self.rows, lines, strict=True)
            }
            self.args.json.write_text(json.dumps({"head": self._head(), "rows": runs}, indent=1))

    def _head(self) -> str:
        args = self.args
        parameters = sum(
            int(np.prod(shape)) for name, shape in full.shapes(self.size).items() if "gemma_expert.lm_head" not in name
        )
        return (
            f"pi0.5 of {parameters / 1e6:.3g} M random parameters, {args.cameras} of 3 cameras, {self.tokens} tokens "
            f"of prompt, horizon {self.size.horizon}, 10 steps; {cpu_model()}; {len(args.cpus)} threads; "
            f"{args.rounds} rounds of {args.chunks} chunks."
        )


def line(row: Row, reference: Row) -> dict[str, Any]:
    """Return a contender's figures: of the runs that nothing disturbed, of all where there are none."""
    clean = [times for times in row.times if not times["dirty"]]
    used = clean or row.times
    totals = [times["total"] for times in used]
    reached = reference.actions
    return {
        "name": row.name,
        "clean": len(clean),
        "total_ms": [statistics.median(totals), min(totals), max(totals)],
        "stages_ms": {name: statistics.median(times[name] for times in used) for name in STAGES if name in used[0]},
        "difference": float(np.abs(row.actions - reached).max() / np.abs(reached).max()),
        "bundle_mb": row.bundle_mb,
    }


def table(lines: list[dict[str, Any]], reference: str) -> list[str]:
    """Return the rows of a Markdown table."""
    first = next(one for one in lines if one["name"] == reference)
    head = ["contender", "n", "chunk ms", f"times faster than {reference}", *(f"{name} ms" for name in STAGES)]
    head += ["largest difference of actions", "bundle MB"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for one in lines:
        median, low, high = one["total_ms"]
        stages = [f"{one['stages_ms'][name]:.1f}" if name in one["stages_ms"] else "" for name in STAGES]
        count = str(one["clean"]) if one["clean"] else "**0**"
        size = "" if one["bundle_mb"] is None else f"{one['bundle_mb']:.0f}"
        cells = [one["name"], count, f"{median:.0f} [{low:.0f}..{high:.0f}]", f"{first['total_ms'][0] / median:.2f}"]
        rows.append("| " + " | ".join([*cells, *stages, f"{one['difference']:.1e}", size]) + " |")
    return rows


def main() -> None:
    """Read the command line and race."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=full.SIZES, default="race")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--chunks", type=int, default=1, help="in a row at each turn")
    parser.add_argument(
        "--cameras", type=int, choices=(1, 2, 3), default=3, help="with an image; the others are masked"
    )
    parser.add_argument("--recipes", default="policy-int8", help="besides float32, with commas")
    parser.add_argument("--rows", help="names of rows of ours with semicolons, instead of all")
    parser.add_argument("--compile", default="default", help="modes of torch.compile with commas, or nothing")
    parser.add_argument("--cpus", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lerobot-python", type=Path)
    parser.add_argument("--lerobot", type=Path)
    parser.add_argument("--openpi", type=Path)
    parser.add_argument("--work", type=Path, default=ROOT / ".peers" / "policy_race")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--verbose", action="store_true", help="show what the contenders print")
    args = parser.parse_args()
    if args.lerobot_python and not (args.lerobot and args.openpi):
        parser.error("--lerobot-python needs --lerobot and --openpi as well")
    Race(args).run()


if __name__ == "__main__":
    main()
