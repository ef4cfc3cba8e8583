"""Write tests/goldens/text/<case>/: a tiny random checkpoint and what transformers computes with it.

    HF_HUB_OFFLINE=1 python tools/goldens/make_text_models.py [CASE ...]

Each folder holds config.json, model.safetensors, generation_config.json (as save_pretrained writes them),
expected.npz (see README.md), case.json and, for some cases, config.v4.json: the same config in the spelling of
transformers 4. The script fails rather than store a golden that would not catch the bug it is for.
"""

import argparse
import copy
import inspect
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from text_cases import CASES as FIRST_CASES
from text_cases import DROP, Case
from text_cases_dense import DENSE_CASES
from text_cases_hybrid import HYBRID_CASES
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

CASES: list[Case] = [*FIRST_CASES, *DENSE_CASES, *HYBRID_CASES]

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "text"
LENGTH, CHUNK = 64, 30
BATCH = (3, 20)
PADDING = (0, 5, 11)  # left padding of the rows of ids_b in logits_p
EMBEDDING = re.compile(r"embed_tokens|embed_in\b|embed_positions|wte|wpe|word_embeddings|\bembeddings\.weight")
HEAD = re.compile(r"lm_head|embed_out")
QUERY_KEY = re.compile(r"q_proj|k_proj|qkv|c_attn|query_key_value|Wqkv")
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
    """Return the float32 model in eval mode (weights as transformers initialises them)."""
    model_class = getattr(transformers, case.model_class)
    config = copy.deepcopy(config)  # config classes write into rope_parameters
    model = model_class._from_config(
        model_class.config_class(**config), attn_implementation=case.attention, experts_implementation="eager"
    )
    return model.float().eval()


def stored_tensors(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the floating point tensors of the checkpoint: the parameters by name, then the persistent buffers."""
    parameters = dict(model.named_parameters())
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    tensors = sorted(parameters.items()) + sorted(buffers.items())
    return [(name, tensor) for name, tensor in tensors if tensor.is_floating_point()]


def fan_in(model: Any, name: str, tensor: torch.Tensor) -> int:
    """Return how many products are summed for one output of a weight."""
    if tensor.ndim < 2:
        return 1
    module = model.get_submodule(name.rpartition(".")[0])
    if isinstance(module, Conv1D):
        return tensor.shape[0]
    if tensor.ndim == 3 and not isinstance(module, torch.nn.Conv1d):
        return tensor.shape[-1]  # the experts of a layer in one tensor
    return tensor[0].numel()


def randomise(model: Any, case: Case) -> None:
    """Give every stored tensor a random value: norm weights and biases with std 0.3, nothing left at 0 or 1.

    Case.values (pattern -> mean, std) and Case.gains (pattern -> factor on the std) change that for some names.
    """
    generator = torch.Generator().manual_seed(case.seed)
    tied = model.config.get_text_config().tie_word_embeddings
    plus_one_norms = case.plus_one_norms or "Gemma" in case.model_class
    used = set()
    for name, tensor in stored_tensors(model):
        noise = torch.randn(tensor.shape, generator=generator)
        if pattern := next((key for key in case.gains if re.search(key, name)), None):
            used.add(pattern)
            noise *= case.gains[pattern]
        if pattern := next((key for key in case.values if re.search(key, name)), None):
            used.add(pattern)
            mean, std = case.values[pattern]
            value = mean + std * noise
        elif name.endswith("bias"):
            value = 0.3 * noise
        elif "norm" in name or (name.endswith("weight") and tensor.ndim == 1):
            value = 0.3 * noise if plus_one_norms else 1.0 + 0.3 * noise
        elif EMBEDDING.search(name) and not tied:
            value = noise
        elif EMBEDDING.search(name) or HEAD.search(name):
            value = noise * 2.0 / math.sqrt(tensor.shape[1])
        else:
            gain = 1.35 if QUERY_KEY.search(name) else 1.1
            value = noise * gain / math.sqrt(fan_in(model, name, tensor))
        tensor.data.copy_(value.to(getattr(torch, case.dtype)))
    if unused := {*case.gains, *case.values} - used:
        raise ValueError(f"{case.name}: no tensor is called {sorted(unused)}")


class RouterMargin(TorchFunctionMode):
    """Record how close a choice of experts comes to another: torch.topk, and Tensor.max over the last dimension.

    The margin is the gap from the last chosen score to the best one left, relative to the former if scores are
    probabilities. Phi-3.5 MoE also compares with a threshold (a Tensor > a number): the distance to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.smallest = math.inf

    def see(self, margin: torch.Tensor) -> None:
        finite = margin[margin.isfinite()]
        self.smallest = min(self.smallest, float(finite.min())) if len(finite) else self.smallest

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        k = kwargs.get("k", args[1] if len(args) > 1 else None) if func in (torch.topk, torch.Tensor.topk) else None
        k = 1 if func is torch.Tensor.max and "dim" in kwargs else k
        if k and k < args[0].shape[-1]:
            with torch._C.DisableTorchFunction():
                scores = args[0].float().sort(-1, descending=True).values
                gap = scores[..., k - 1] - scores[..., k]
                positive = scores[..., k - 1] if scores.min() >= 0 else 1.0
                self.see(gap / positive)
        if func is torch.Tensor.__gt__ and isinstance(args[1], float):
            with torch._C.DisableTorchFunction():
                self.see((args[0] - args[1]).abs())
        return out


def decode(model: Any, ids: torch.Tensor, position_ids: bool = False) -> torch.Tensor:
    """Return logits of positions CHUNK - 1 .. LENGTH - 1: one prefill of CHUNK ids, then one id a step."""
    out = model(input_ids=ids[:, :CHUNK], use_cache=True)
    rows = [out.logits[0, -1]]
    for position in range(CHUNK, ids.shape[1]):
        extra = {"position_ids": torch.tensor([[position]])} if position_ids else {}
        out = model(input_ids=ids[:, position : position + 1], cache=out.cache, use_cache=True, **extra)
        rows.append(out.logits[0, -1])
    return torch.stack(rows)


def attention_entropy(model: Any, ids: torch.Tensor) -> float | None:
    """Return the mean entropy of the attention rows over that of uniform attention on the same visible keys (0..1).

    None where the model returns no attention (state space models).
    """
    ratios = []
    for layer in getattr(model(input_ids=ids, output_attentions=True), "attentions", None) or ():
        if layer is None:
            continue
        rows = layer[0, :, 4:]
        rows = rows / rows.sum(-1, keepdim=True)  # a sink takes its part
        entropy = -(rows * rows.clamp_min(1e-30).log()).sum(-1)
        ratios.append((entropy / (rows > 0).sum(-1).clamp_min(2).log()).mean())
    return float(torch.stack(ratios).mean()) if ratios else None


def padded(model: Any, ids_b: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Return the logits of ids_b with PADDING left padding a row (zeros there), and a note if a batch gives others."""
    mask = torch.ones(BATCH, dtype=torch.long)
    for row, count in enumerate(PADDING):
        mask[row, :count] = 0
    arguments = {"input_ids": ids_b * mask, "attention_mask": mask}
    if "position_ids" in inspect.signature(model.forward).parameters:
        arguments["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)
    batch = model(**arguments).logits * mask[..., None]
    rows = torch.zeros_like(batch)
    for row, count in enumerate(PADDING):
        rows[row, count:] = model(input_ids=ids_b[row : row + 1, count:]).logits[0]
    difference = float((batch - rows).abs().max() / rows.abs().max())
    if difference < 1e-4:
        return batch, ""
    return rows, (
        "logits_p: computed row by row without padding, because this model of transformers is not consistent: "
        f"a padded batch differs by {difference:.1e} of the largest logit."
    )


def checked_decode(case: Case, model: Any, ids: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, float, str]:
    """Return the decode logits, their distance to the prefill, and a note if transformers disagrees with itself."""
    rows = decode(model, ids)
    difference = float((rows - logits[CHUNK - 1 :]).abs().max())
    if difference < 1e-4:
        return rows, difference, ""
    note = f"decode_logits: without position_ids this model of transformers decodes {difference:.1e} off the prefill; "
    if case.prefill_is_truth:
        return logits[CHUNK - 1 :].clone(), 0.0, note.replace("without position_ids ", "") + "these are of the prefill."
    rows = decode(model, ids, position_ids=True)
    return rows, float((rows - logits[CHUNK - 1 :]).abs().max()), note + "these were made with position_ids."


def draw_ids(seed: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [1, LENGTH] and ids_b BATCH from the ids below 93, which leaves out the image tokens of gemma3."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, min(93, vocab_size), (1, LENGTH), generator=generator)
    return ids, torch.randint(0, min(93, vocab_size), BATCH, generator=generator)


def twin_difference(case: Case, config: dict[str, Any], model: Any, ids: torch.Tensor, logits: torch.Tensor) -> float:
    """Return the largest difference of the logits when the same weights run under another config."""
    twin = build(case, config)
    missing = twin.load_state_dict(model.state_dict(), strict=False).missing_keys  # weights may be left over
    if missing:
        raise AssertionError(f"{case.name}: a twin needs {missing}")
    return float((twin(input_ids=ids).logits[0] - logits).abs().max())


def to_v4(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a config in the spelling of transformers 4: rope_theta, rope_scaling, torch_dtype; changes come last."""
    out = {key: value for key, value in config.items() if key not in NEW_IN_V5}
    out |= {"torch_dtype": config.get("dtype", "float32"), "transformers_version": "4.51.3"}
    if "text_config" in out:
        return out | {"text_config": to_v4(config["text_config"], changes)}
    rope = config.get("rope_parameters")
    if rope is None:
        return dict(sorted((out | changes).items()))
    if "full_attention" in rope:
        out["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    neox = config["model_type"] == "gpt_neox"
    out["rotary_emb_base" if neox else "rope_theta"] = rope["rope_theta"]
    if "partial_rotary_factor" in rope:
        out["rotary_pct" if neox else "partial_rotary_factor"] = rope["partial_rotary_factor"]
    out["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    for key, value in changes.items():
        if value is None and key in ("layer_types", "head_dim", "rope_local_base_freq"):
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


def rename(path: Path, prefixes: dict[str, str], extra: dict[str, tuple[int, ...]]) -> list[str]:
    """Rename tensors by prefix, add tensors that every reader must ignore; return what was done."""
    renamed = {name: torch.ones(shape) for name, shape in extra.items()}
    for name, tensor in load_file(path).items():
        prefix = next((key for key in prefixes if name.startswith(key)), "")
        renamed[prefixes.get(prefix, "") + name.removeprefix(prefix)] = tensor
    save_file(renamed, path, metadata={"format": "pt"})
    notes = [f"tensor names: {old}* renamed to {new}*" for old, new in prefixes.items()]
    if extra:
        notes.append(f"useless tensors added, as old files have them: {', '.join(extra)}")
    return notes


def stack_experts(path: Path) -> str:
    """Replace experts.N.{gate,up,down}_proj.weight by experts.gate_up_proj and experts.down_proj; say so."""
    tensors = load_file(path)
    ends = ("0.gate_proj.weight", "0.up_proj.weight", "0.down_proj.weight")
    for prefix in [name.removesuffix(ends[0]) for name in tensors if name.endswith(".experts." + ends[0])]:
        count = sum(name.startswith(prefix) for name in tensors) // 3
        gate, up, down = (
            torch.stack([tensors.pop(f"{prefix}{index}{end[1:]}") for index in range(count)]) for end in ends
        )
        tensors |= {f"{prefix}gate_up_proj": torch.cat([gate, up], dim=1), f"{prefix}down_proj": down}
    save_file(tensors, path, metadata={"format": "pt"})
    return "The experts are stacked: gate_up_proj [experts, gate then up, in], down_proj [experts, out, in]."


def check_reload(case: Case, folder: Path, config_name: str, ids: torch.Tensor, logits: torch.Tensor) -> None:
    """Load the stored folder with the given config file and demand the same logits."""
    model_class = getattr(transformers, case.model_class)
    config = model_class.config_class._decode_special_floats(json.loads((folder / config_name).read_text()))
    model = model_class.from_pretrained(
        folder,
        config=model_class.config_class(**config),
        dtype=torch.float32,
        experts_implementation="eager",
        attn_implementation=case.attention,
    )
    difference = float((model.eval()(input_ids=ids).logits[0] - logits).abs().max())
    if difference > 1e-6:
        raise AssertionError(f"{case.name}: {config_name} reloads to other logits, difference {difference:.2e}")


def store(case: Case, model: Any, folder: Path) -> list[str]:
    """Write the checkpoint and config.v4.json; return notes for case.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    notes = list(case.notes)
    stored = model
    if case.dtype != "float32":
        stored = build(case, case.config)
        stored.load_state_dict(model.state_dict())
        stored = stored.to(getattr(torch, case.dtype))
        stored.config.dtype = getattr(torch, case.dtype)
    stored.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    if case.stack_experts:
        notes.append(stack_experts(folder / "model.safetensors"))
    if case.rename or case.extra:
        notes += rename(folder / "model.safetensors", case.rename, case.extra)
    if case.other_prefix:
        notes.append(swap_prefix(folder / "model.safetensors"))
    if case.public is not None:
        config = json.loads((folder / "config.json").read_text()) | case.public
        config = {key: value for key, value in sorted(config.items()) if value != DROP}
        (folder / "config.v4.json").write_text(json.dumps(config, indent=2) + "\n")
    if case.v4 is not None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.v4.json").write_text(json.dumps(to_v4(config, case.v4), indent=2) + "\n")
    return notes


def make(case: Case) -> None:
    """Build, run, check and store one case."""
    torch.manual_seed(case.seed)
    model = build(case, case.config)
    randomise(model, case)
    ids, ids_b = draw_ids(case.seed + 1000, model.config.get_text_config().vocab_size)
    logits = model(input_ids=ids).logits[0]
    decode_logits, decode_difference, decode_note = checked_decode(case, model, ids, logits)
    entropy = attention_entropy(model, ids)
    full = merge(model.config.to_dict(), {})
    twins = {key: twin_difference(case, merge(full, change), model, ids, logits) for key, change in case.twins.items()}
    same = {k: twin_difference(case, merge(full, change), model, ids, logits) for k, change in case.no_effect.items()}
    if not (decode_difference < 1e-4 and 0.5 < logits.std() < 6 and (entropy is None or entropy < 0.92)):
        raise AssertionError(f"{case.name}: decode {decode_difference}, std {logits.std()}, entropy {entropy}")
    if any(value < 1e-3 for value in twins.values()) or any(value > 0 for value in same.values()):
        raise AssertionError(f"{case.name}: a twin is wrong: {twins} {same}")

    folder = OUT / case.name
    notes = store(case, model, folder)
    check_reload(case, folder, "config.json", ids, logits)
    if case.v4 is not None or case.public is not None:
        check_reload(case, folder, "config.v4.json", ids, logits)
    arrays = {"ids": ids, "logits": logits, "decode_logits": decode_logits, "ids_b": ids_b}
    with RouterMargin() as router:
        model(input_ids=ids)
        arrays["logits_b"] = model(input_ids=ids_b).logits
        arrays["pad_b"] = torch.tensor(PADDING)
        arrays["logits_p"], padding_note = padded(model, ids_b)
    if router.smallest < 1e-3:
        raise AssertionError(f"{case.name}: two experts are too close, margin {router.smallest:.1e}; try another seed")
    notes += [note for note in (decode_note, padding_note) if note]
    np.savez_compressed(folder / "expected.npz", **{key: value.numpy() for key, value in arrays.items()})
    record = {
        "name": case.name,
        "about": case.about,
        "model_class": case.model_class,
        "seed": case.seed,
        "stored_dtype": case.dtype,
        "computed_in": f"float32, {case.attention} attention, eval",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "decode_logits": f"positions {CHUNK - 1}..{LENGTH - 1}; row 0 is the last of a {CHUNK}-token prefill",
        "decode_vs_prefill_max_abs": decode_difference,
        "logits_std": round(float(logits.std()), 3),
        "attention_entropy_over_uniform": entropy and round(entropy, 3),
        "twins_max_abs_logit_difference": {key: round(value, 4) for key, value in twins.items()},
        "keys_without_effect": same,
        "notes": notes,
    }
    if router.smallest < math.inf:
        record["smallest_router_margin"] = round(router.smallest, 5)
    (folder / "case.json").write_text(json.dumps(record, indent=2) + "\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{case.name:24s} {size / 1000:6.1f} kB  std {logits.std():.2f}  entropy {entropy or math.nan:.2f}  "
          f"decode {decode_difference:.1e}  {'SINGLE ROWS ' if padding_note else ''}"
          f"{'DECODE NOTE ' if decode_note else ''}router {router.smallest:.1e}  "
          f"twins {record['twins_max_abs_logit_difference']}")  # fmt: skip


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
