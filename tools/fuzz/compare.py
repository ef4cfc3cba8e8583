"""Compare the product with the reference over the checkpoints that make_models.py wrote.

    python tools/fuzz/compare.py OUT [--families NAME ...] [--report FILE]

Each checkpoint gets one verdict: right, refused (with the sentence), WRONG (with scenario and error) or CRASH (with the
end of the traceback). Float weights must agree with transformers, integer weights with the portable graph over the same
weights, both within 1e-4 of the largest logit. Exits with 1 when one is wrong or crashes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "matrix"))
from cells import SAME_WEIGHTS, _float_inputs, _relative, engine_of

from edgewright.checkpoint import open_checkpoint
from edgewright.errors import EdgewrightError
from edgewright.models import build_llm
from edgewright.quant.recipe_file import load_recipe
from edgewright.runtime.engine import Engine
from edgewright.runtime.session import Session

#: Largest error against transformers, relative to the largest logit.
LIMIT = 1e-4
#: Tokens of each row of the batch that are decoded together.
TAIL = 4


def pieces(engine: Engine, ids: np.ndarray, wanted: np.ndarray, cuts: list[int], capacity: int = 256) -> float:
    """Feed the tokens cut at `cuts`; compare where the reference has the same rope."""
    session = Session(engine, first_capacity=capacity)
    n, switch, worst = len(ids), engine.contract.rope_switch, 0.0
    for a, b in itertools.pairwise(sorted({0, *cuts, n})):
        got = session.append(ids[a:b], logits="last" if b - a == 1 else "all")
        if switch is None or (b > switch) == (n > switch):
            worst = max(worst, _relative(got, wanted[a:b]))
    return worst


def turns(engine: Engine, ids: np.ndarray, wanted: np.ndarray, source: random.Random) -> float:
    """Feed pieces, also of another text, and take ends back, at random; now and then go on with a copy."""
    session, switch, worst = Session(engine, first_capacity=source.choice((16, 64))), engine.contract.rope_switch, 0.0
    n, held = len(ids), 0
    for _ in range(16):
        if held == n or (held and source.random() < 0.4):
            session.append(ids[::-1][: source.choice((1, 3, 20))], logits="none")
            held = session.rewind(source.randrange(held + 1))
            session = session.copy() if source.random() < 0.5 else session
            continue
        end = min(n, held + source.choice((1, 1, 2, 5, 17, 40)))
        got = session.append(ids[held:end], logits="last" if end - held == 1 else "all")
        if switch is None or (end > switch) == (n > switch):
            worst = max(worst, float(np.abs(got - wanted[held:end]).max() / np.abs(wanted).max()))
        held = end
    return worst


def ragged(engine: Engine, data: dict[str, np.ndarray], source: random.Random) -> float:
    """Feed three rows of different lengths in pieces of any lengths, and decode their ends together."""
    rows = [row[:length] for row, length in zip(data["rows"], data["lengths"], strict=True)]
    count, switch, worst = source.choice((1, 2, 3)), engine.contract.rope_switch, 0.0
    cuts = [[0, *sorted(source.sample(range(1, len(r) - TAIL), count - 1)), len(r) - TAIL] for r in rows]
    session = Session(engine, batch=len(rows), first_capacity=source.choice((16, 256)))
    got: list[list[np.ndarray]] = [[] for _ in rows]
    ends: list[list[int]] = [[] for _ in rows]  # how long the text was in the call that gave a row of logits
    for i in range(count):
        parts = [row[cut[i] : cut[i + 1]] for row, cut in zip(rows, cuts, strict=True)]
        for index, part in enumerate(session.append_rows(parts, logits="all")):
            got[index] += list(part)
            ends[index] += [cuts[index][i + 1]] * len(part)
    for i in range(-TAIL, 0):
        for index, part in enumerate(session.append(np.stack([row[[i]] for row in rows]))):
            got[index].append(part[0])
            ends[index].append(len(rows[index]) + i + 1)
    for index, row in enumerate(rows):
        n = len(row)
        same = [i for i in range(n) if switch is None or (ends[index][i] > switch) == (n > switch)]
        if same:
            wanted = data[f"logits_{index}"]
            worst = max(worst, float(np.abs(np.stack(got[index])[same] - wanted[same]).max() / np.abs(wanted).max()))
    return worst


def errors(folder: Path, number: int) -> dict[str, float]:
    """Return the error of each scenario."""
    checkpoint = open_checkpoint(folder)
    with np.load(folder / "expected.npz") as archive:
        data = dict(archive)
    ids, logits = data["ids"], data["logits"]
    source = random.Random(folder.name)
    found: dict[str, float] = {}
    with engine_of(checkpoint, "onnxruntime", load_recipe("float32")) as engine:
        found["prefill"] = pieces(engine, ids, logits, [])
        found["chunked"] = max(pieces(engine, ids, logits, source.sample(range(1, len(ids)), n)) for n in (1, 3, 6))
        found["decode"] = pieces(engine, ids, logits, list(range(1, len(ids))), source.choice((16, 32, 256)))
        found["turns"] = turns(engine, ids, logits, source)
        found["ragged"] = ragged(engine, data, source)
    if number % 3 == 0:
        with engine_of(checkpoint, "portable", load_recipe("float32")) as engine:
            found["portable"] = pieces(engine, ids, logits, [])
            found["portable decode"] = pieces(engine, ids, logits, [20, *range(40, len(ids))])
            found["portable turns"] = turns(engine, ids, logits, source)
        found["portable ragged"] = ragged(engine, data, source)
    for kind in ("int4", "int8", "float16")[number % 3 :]:
        exact = _float_inputs(load_recipe(kind))
        with engine_of(checkpoint, "onnxruntime", exact) as engine:
            fast = Session(engine).append(ids, logits="all")
        with engine_of(checkpoint, "portable", exact) as engine:
            plain = Session(engine, first_capacity=len(ids)).append(ids, logits="all")
        found[kind] = _relative(fast, plain)
    return found


def judge(folder: Path) -> dict[str, Any]:
    """Return the verdict about a checkpoint."""
    about = json.loads((folder / "case.json").read_text())
    try:
        build_llm(open_checkpoint(folder))
    except EdgewrightError as error:
        return {**about, "verdict": "refused", "why": str(error)}
    except Exception:
        return {**about, "verdict": "CRASH", "why": traceback.format_exc(limit=-3)}
    try:
        found = errors(folder, about["number"])
    except EdgewrightError as error:
        return {**about, "verdict": "refused late", "why": str(error)}
    except Exception:
        return {**about, "verdict": "CRASH", "why": traceback.format_exc(limit=-3)}
    limits = {key: SAME_WEIGHTS if key in ("int4", "int8", "float16") else LIMIT for key in found}
    bad = {key: value for key, value in found.items() if not value <= limits[key]}
    why = ", ".join(f"{key} {value:.1e}" for key, value in bad.items())
    return {**about, "verdict": "WRONG" if bad else "right", "why": why, "errors": found}


def main() -> int:
    """Judge the checkpoints of a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder that make_models.py wrote")
    parser.add_argument("--families", nargs="*", metavar="NAME", help="default: all that are there")
    parser.add_argument("--report", type=Path, help="write the verdicts there, one JSON object a line")
    args = parser.parse_args()
    begin = time.monotonic()
    table: dict[str, Counter[str]] = {}
    lines = []
    for path in sorted(args.out.glob("*/case.json")):
        family = json.loads(path.read_text())["family"]
        if args.families and family not in args.families:
            continue
        result = judge(path.parent)
        lines.append(json.dumps(result))
        table.setdefault(family, Counter())[result["verdict"]] += 1
        if result["verdict"] != "right":
            print(f"{path.parent.name:26s} {result['verdict']}: {result['why'].strip()[-400:]}", flush=True)
    print()
    for family, counts in table.items():
        print(f"{family:20s} " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    print(f"{sum(c.total() for c in table.values())} checkpoints, {time.monotonic() - begin:.0f} s")
    if args.report:
        args.report.write_text("".join(line + "\n" for line in lines))
    return int(any(counts["WRONG"] or counts["CRASH"] for counts in table.values()))


if __name__ == "__main__":
    sys.exit(main())
