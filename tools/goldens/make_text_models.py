"""Write tests/goldens/text/<case>/: a tiny random checkpoint and what transformers computes with it.

    HF_HUB_OFFLINE=1 python tools/goldens/make_text_models.py [CASE ...]

Each folder holds config.json, model.safetensors, generation_config.json (as save_pretrained writes them),
expected.npz (see README.md), case.json and, for some cases, config.v4.json: the same config in the spelling of
transformers 4. The script fails rather than store a golden that would not catch the bug it is for.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from text_cases import CASES, Case

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "text"
LENGTH, CHUNK = 64, 30
BATCH = (3, 20)
NEW_IN_V5 = ("rope_parameters", "dtype", "_sliding_window_pattern", "use_bidirectional_attention")
PREFIXES = ("language_model.model.", "model.language_model.")


def merge(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return config with changes; dictionaries named *_config are merged, a top-level None removes the key."""
    out = dict(config)
    for key, value in changes.items():
        if key.endswith("_config"):
            out[key] = merge(out[key], value)
        elif value is None and key == "layer_types":
            out.pop(key, None)  # derived again by the config class
        else:
            out[key] = value
    return out


def build(case: Case, config: dict[str, Any]) -> Any:
    """Return the float32 model in eval mode with eager attention (weights as transformers initialises them)."""
    model_class = getattr(transformers, case.model_class)
    model = model_class._from_config(model_class.config_class(**config), attn_implementation="eager")
    return model.float().eval()


def randomise(model: Any, seed: int, plus_one_norms: bool) -> None:
    """Give every parameter a random value: norm weights and biases with std 0.3, nothing left at 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    tied = model.config.get_text_config().tie_word_embeddings
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            value = 0.3 * noise
        elif "norm" in name:
            value = 0.3 * noise if plus_one_norms else 1.0 + 0.3 * noise
        elif "embed_tokens" in name and not tied:
            value = noise
        elif "embed_tokens" in name or "lm_head" in name:
            value = noise * 2.0 / math.sqrt(parameter.shape[1])
        else:
            gain = 1.35 if "q_proj" in name or "k_proj" in name else 1.1
            value = noise * gain / math.sqrt(parameter[0].numel())
        parameter.data.copy_(value)


def decode(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return logits of positions CHUNK - 1 .. LENGTH - 1: one prefill of CHUNK ids, then one id a step."""
    out = model(input_ids=ids[:, :CHUNK], use_cache=True)
    rows = [out.logits[0, -1]]
    for position in range(CHUNK, ids.shape[1]):
        out = model(input_ids=ids[:, position : position + 1], cache=out.cache, use_cache=True)
        rows.append(out.logits[0, -1])
    return torch.stack(rows)


def attention_entropy(model: Any, ids: torch.Tensor) -> float:
    """Return the mean entropy of the attention rows over that of uniform attention on the same visible keys (0..1)."""
    ratios = []
    for layer in model(input_ids=ids, output_attentions=True).attentions:
        rows = layer[0, :, 4:]
        entropy = -(rows * rows.clamp_min(1e-30).log()).sum(-1)
        ratios.append((entropy / (rows > 0).sum(-1).log()).mean())
    return float(torch.stack(ratios).mean())


def draw_ids(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [1, LENGTH] and ids_b BATCH from the ids below 93, which leaves out the image tokens of gemma3."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 93, (1, LENGTH), generator=generator)
    return ids, torch.randint(0, 93, BATCH, generator=generator)


def twin_difference(case: Case, config: dict[str, Any], model: Any, ids: torch.Tensor, logits: torch.Tensor) -> float:
    """Return the largest difference of the logits when the same weights run under another config."""
    twin = build(case, config)
    twin.load_state_dict(model.state_dict())
    return float((twin(input_ids=ids).logits[0] - logits).abs().max())


def to_v4(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a config in the spelling of transformers 4: rope_theta, rope_scaling, torch_dtype; changes come last."""
    out = {key: value for key, value in config.items() if key not in NEW_IN_V5}
    out |= {"torch_dtype": config.get("dtype", "float32"), "transformers_version": "4.51.3"}
    if "text_config" in out:
        return out | {"text_config": to_v4(config["text_config"], changes)}
    rope = config["rope_parameters"]
    if "full_attention" in rope:
        out["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    out["rope_theta"] = rope["rope_theta"]
    out["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    for key, value in changes.items():
        if value is None and key in ("layer_types", "head_dim"):
            out.pop(key)  # absent in old files, derived by the reader
        else:
            out[key] = value
    return dict(sorted(out.items()))


def swap_prefix(path: Path) -> str:
    """Rename the text tensors of a Gemma 3 checkpoint from one known prefix to the other; return what was done."""
    tensors = load_file(path)
    old, new = PREFIXES if any(name.startswith(PREFIXES[0]) for name in tensors) else PREFIXES[::-1]
    swap = {old: new, "vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector."}
    if new == PREFIXES[0]:
        swap = {old: new} | {after: before for before, after in list(swap.items())[1:]}
    renamed = {}
    for name, tensor in tensors.items():
        prefix = next((key for key in swap if name.startswith(key)), None)
        if prefix is None:
            raise ValueError(f"{path}: no rule for the tensor {name}")
        renamed[swap[prefix] + name.removeprefix(prefix)] = tensor
    save_file(renamed, path, metadata={"format": "pt"})
    return f"tensor names: {old}* renamed to {new}*"


def check_reload(case: Case, folder: Path, config_name: str, ids: torch.Tensor, logits: torch.Tensor) -> None:
    """Load the stored folder with the given config file and demand the same logits."""
    config = json.loads((folder / config_name).read_text())
    model_class = getattr(transformers, case.model_class)
    model = model_class.from_pretrained(
        folder, config=model_class.config_class(**config), dtype=torch.float32, attn_implementation="eager"
    )
    difference = float((model.eval()(input_ids=ids).logits[0] - logits).abs().max())
    if difference > 1e-6:
        raise AssertionError(f"{case.name}: {config_name} reloads to other logits, difference {difference:.2e}")


def store(case: Case, model: Any, folder: Path) -> list[str]:
    """Write the checkpoint and config.v4.json; return notes for case.json."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = list(case.notes)
    stored = model
    if case.dtype != "float32":
        stored = build(case, case.config)
        stored.load_state_dict(model.state_dict())
        stored = stored.to(getattr(torch, case.dtype))
        stored.config.dtype = getattr(torch, case.dtype)
    stored.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    if case.other_prefix:
        notes.append(swap_prefix(folder / "model.safetensors"))
    if case.v4 is not None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.v4.json").write_text(json.dumps(to_v4(config, case.v4), indent=2) + "\n")
    return notes


def round_weights(model: Any, dtype: torch.dtype) -> None:
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.to(dtype).float())


def make(case: Case) -> None:
    """Build, run, check and store one case."""
    torch.manual_seed(case.seed)
    model = build(case, case.config)
    randomise(model, case.seed, plus_one_norms="Gemma" in case.model_class)
    round_weights(model, getattr(torch, case.dtype))
    ids, ids_b = draw_ids(case.seed + 1000)
    logits = model(input_ids=ids).logits[0]
    decode_logits = decode(model, ids)
    decode_difference = float((decode_logits - logits[CHUNK - 1 :]).abs().max())
    entropy = attention_entropy(model, ids)
    full = merge(model.config.to_dict(), {})
    twins = {key: twin_difference(case, merge(full, change), model, ids, logits) for key, change in case.twins.items()}
    same = {k: twin_difference(case, merge(full, change), model, ids, logits) for k, change in case.no_effect.items()}
    if not (decode_difference < 1e-4 and 0.9 < logits.std() < 3.5 and entropy < 0.92):
        raise AssertionError(f"{case.name}: decode {decode_difference}, std {logits.std()}, entropy {entropy}")
    if any(value < 1e-3 for value in twins.values()) or any(value > 0 for value in same.values()):
        raise AssertionError(f"{case.name}: a twin is wrong: {twins} {same}")

    folder = OUT / case.name
    notes = store(case, model, folder)
    check_reload(case, folder, "config.json", ids, logits)
    if case.v4 is not None:
        check_reload(case, folder, "config.v4.json", ids, logits)
    arrays = {"ids": ids, "logits": logits, "decode_logits": decode_logits, "ids_b": ids_b}
    arrays["logits_b"] = model(input_ids=ids_b).logits
    np.savez_compressed(folder / "expected.npz", **{key: value.numpy() for key, value in arrays.items()})
    record = {
        "name": case.name,
        "about": case.about,
        "model_class": case.model_class,
        "seed": case.seed,
        "stored_dtype": case.dtype,
        "computed_in": "float32, eager attention, eval",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "decode_logits": f"positions {CHUNK - 1}..{LENGTH - 1}; row 0 is the last of a {CHUNK}-token prefill",
        "decode_vs_prefill_max_abs": decode_difference,
        "logits_std": round(float(logits.std()), 3),
        "attention_entropy_over_uniform": round(entropy, 3),
        "twins_max_abs_logit_difference": {key: round(value, 4) for key, value in twins.items()},
        "keys_without_effect": same,
        "notes": notes,
    }
    (folder / "case.json").write_text(json.dumps(record, indent=2) + "\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{case.name:24s} {size / 1000:6.1f} kB  std {logits.std():.2f}  entropy {entropy:.2f}  "
          f"decode {decode_difference:.1e}  twins {record['twins_max_abs_logit_difference']}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names of cases; default: all")
    wanted = parser.parse_args().cases
    if unknown := set(wanted) - {case.name for case in CASES}:
        parser.error(f"unknown cases {sorted(unknown)}; there are {[case.name for case in CASES]}")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with torch.no_grad():
        for case in CASES:
            if not wanted or case.name in wanted:
                make(case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
