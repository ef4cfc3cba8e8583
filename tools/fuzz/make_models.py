"""Write random tiny checkpoints and what transformers computes with them.

    python tools/fuzz/make_models.py OUT [--seed N] [--count N] [--families NAME ...]

Runs in the environment of tools/goldens/requirements.txt. `OUT/<family>-<seed>-<n>/` holds what save_pretrained writes,
expected.npz (`ids`, `logits`; `rows`, `lengths` and `logits_0` ... of three texts of different lengths, each computed
alone) and case.json. A part of the configs is respelled as transformers 4 wrote it, lacks keys or has null for them;
the reference reads the same file. Configs that transformers itself can't run are counted and left out.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from draws import DRAWS, Draw

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "goldens"))
from make_text_models import RouterMargin, randomise, to_v4
from text_cases import Case

LENGTH = 70
ROWS = (23, 37, 9)
#: Means and standard deviations of tensors that aren't plain weights, by pattern.
VALUES = {
    r"A_log$": (0.1, 0.7),
    r"\.D$": (1.0, 0.5),
    r"dt_bias$": (-0.3, 0.8),
    r"sinks$": (0.5, 1.0),
    r"(e_score_correction_bias|expert_bias)$": (0.0, 0.2),
    r"layer_scalar$|router\.scale$|per_expert_scale$": (1.0, 0.3),
    r"alpha_[pn]$": (0.3, 0.3),
}
GAINS = {r"(\.gate|\.router|router\.layer|gate\.wg|router\.proj)\.weight$": 2.5}
#: transformers' eager path adds the ALiBi twice; recurrent references prefer nothing else.
ATTENTION = {"falcon": "sdpa"}
WRAPPERS = {"gemma3", "gemma4", "qwen3_5", "qwen3_5_moe"}
#: Keys that a file can't do without, here or there.
NEEDED = {
    "text_config",
    "vision_config",
    "audio_config",
    "model_type",
    "architectures",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
}
#: Below this distance of two experts' scores rounding may swap them.
MARGIN = 3e-4


def options(family: str) -> dict[str, Any]:
    """Return how the reference computes."""
    return {"attn_implementation": ATTENTION.get(family, "eager"), "experts_implementation": "eager"}


def model_class(family: str) -> Any:
    """Return the automatic class of a family."""
    return transformers.AutoModelForImageTextToText if family in WRAPPERS else transformers.AutoModelForCausalLM


def build(family: str, draw: Draw, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return a model with random weights, and its drawn config."""
    drawn = DRAWS[family](draw)
    config = transformers.AutoConfig.for_model(family, **json.loads(json.dumps(drawn)))
    model = model_class(family).from_config(config, **options(family)).float().eval()
    names = list(model.state_dict())
    case = Case(
        name=family,
        about="",
        model_class=type(model).__name__,
        config=drawn,
        seed=seed,
        values={key: value for key, value in VALUES.items() if any(re.search(key, name) for name in names)},
        gains={key: value for key, value in GAINS.items() if any(re.search(key, name) for name in names)},
        plus_one_norms=family.startswith(("qwen3_next", "qwen3_5", "nemotron")) and family != "nemotron_h",
    )
    if "gemma4" in family:
        object.__setattr__(case, "values", {**case.values, r"[qk]_norm": (0.7, 0.2), r"norm": (1.0, 0.3)})
    randomise(model, case)
    return model, drawn


def load(folder: Path, family: str) -> Any:
    """Load a checkpoint; raises ValueError where a tensor is missing, left over or of another shape."""
    config = json.loads((folder / "config.json").read_text())
    kind = transformers.AutoConfig.for_model(family).__class__
    model, report = model_class(family).from_pretrained(
        folder,
        config=kind(**kind._decode_special_floats(config)),
        dtype=torch.float32,
        output_loading_info=True,
        **options(family),
    )
    if wrong := {key: sorted(value) for key, value in report.items() if value}:
        raise ValueError(f"the file doesn't load: {wrong}")
    return model.eval()


def compute(model: Any, ids: torch.Tensor) -> np.ndarray:
    """Return the logits of a text."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ["attention"]
    cache = {} if any("attention" in kind.replace("linear_attention", "") for kind in kinds) else {"use_cache": False}
    logits: np.ndarray = model(input_ids=ids[None], **cache).logits[0].numpy()
    if not np.isfinite(logits).all():
        raise ValueError("the reference isn't finite")
    return logits


def respell(folder: Path, family: str, draw: Draw, model: Any, ids: torch.Tensor) -> str:
    """Change how config.json says it; return what was done. A change that transformers can't load is taken back."""
    path = folder / "config.json"
    before = path.read_text()
    config = json.loads(before)
    done = "as saved"
    if draw.flip(0.5) and family not in ("gemma4_text", "phimoe", "ministral3"):
        done = "as transformers 4"
        config = to_v4(config, {})
        config.pop("dtype", None)
        if family == "olmo3":
            config.pop("rope_local_base_freq", None)  # Gemma's spelling, which OLMo never had
    if draw.flip(0.4):
        untied = set() if config.get("tie_word_embeddings") else {"tie_word_embeddings"}
        keys = sorted(set(config) - NEEDED - untied - {"transformers_version", "torch_dtype", "dtype"})
        for key in draw.random.sample(keys, min(len(keys), draw.pick(1, 2, 4))):
            value, null = config.pop(key), draw.flip(0.3)
            if null:
                config[key] = None
            path.write_text(json.dumps(config))
            try:
                compute(load(folder, family), ids[:8])
                done += f", {key} null" if null else f", without {key}"
            except Exception:
                config[key] = value
    path.write_text(json.dumps(config, indent=2, sort_keys=True))
    try:
        compute(load(folder, family), ids[:8])
    except Exception as error:
        path.write_text(before)
        return f"as saved (not {done}: {str(error)[:100]})"
    return done


def make(folder: Path, family: str, seed: int, number: int) -> None:
    """Write one checkpoint and its reference."""
    for attempt in range(4):
        weights = seed * 1000 + number * 10 + attempt
        model, _ = build(family, Draw(f"{family} {seed} {number}"), weights)
        generator = torch.Generator().manual_seed(weights)
        ids = torch.randint(0, model.config.get_text_config().vocab_size, (LENGTH,), generator=generator)
        rows = torch.randint(0, model.config.get_text_config().vocab_size, (len(ROWS), max(ROWS)), generator=generator)
        with RouterMargin() as router:
            compute(model, ids)
            for row, length in zip(rows, ROWS, strict=True):
                compute(model, row[:length])
        if router.smallest > MARGIN:
            break
    draw = Draw(f"spelling {family} {seed} {number}")
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    try:
        spelling = respell(folder, family, draw, model, ids)
        model = load(folder, family)
        arrays = {"ids": ids.numpy(), "logits": compute(model, ids), "rows": rows.numpy(), "lengths": np.array(ROWS)}
        for index, length in enumerate(ROWS):
            arrays[f"logits_{index}"] = compute(model, rows[index, :length])
    except Exception:
        shutil.rmtree(folder)
        raise
    np.savez(folder / "expected.npz", **arrays)
    margin = None if router.smallest == math.inf else router.smallest
    about = {"family": family, "seed": seed, "number": number, "spelling": spelling, "router_margin": margin}
    (folder / "case.json").write_text(json.dumps(about, indent=2) + "\n")


def main() -> int:
    """Write the checkpoints that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other models (default 1)")
    parser.add_argument("--count", type=int, default=4, help="models of each family (default 4)")
    parser.add_argument("--families", nargs="*", default=sorted(DRAWS), choices=sorted(DRAWS), metavar="NAME")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    failed: Counter[str] = Counter()
    with torch.no_grad():
        for number in range(args.count):
            for family in args.families:
                try:
                    make(args.out / f"{family}-{args.seed}-{number}", family, args.seed, number)
                except Exception as error:
                    failed[f"{family}: {type(error).__name__}: {str(error).splitlines()[0][:140]}"] += 1
    for reason, count in sorted(failed.items()):
        print(f"{count} not run by transformers: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
