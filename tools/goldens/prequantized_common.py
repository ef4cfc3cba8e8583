"""What the scripts of the quantized checkpoints share: tiny models, the golden folder, the index."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "prequantized"
FULL_BYTES = 36_000  # float32 weights stored in full per case; the others are in case.json as SHA-256
LIMIT = 400_000
LENGTH = 20


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a tiny decoder; the defaults are multiples of 32 only."""

    family: str = "llama"
    hidden: int = 64
    inner: int = 96
    layers: int = 1
    vocab: int = 96
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 32
    tied: bool = False


WIDE = Shape(hidden=128, inner=128, heads=4, kv_heads=1)  # every in-feature is a multiple of 128


def build_model(shape: Shape, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """Return a random model in eval mode: weights of every row at another scale, norm weights near 1, no zeros."""
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[shape.family]
    config = config_class(
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        vocab_size=shape.vocab,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=128,
        tie_word_embeddings=shape.tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        architectures=[model_class.__name__],
    )
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            parameter.data = 1 + 0.2 * noise
        else:
            rows = torch.exp(0.4 * torch.randn(parameter.shape[0], 1, generator=generator))
            gain = 1.0 if "embed" in name else 1.5 / parameter.shape[1] ** 0.5
            parameter.data = gain * rows * noise
    return model.to(dtype)


def token_ids(seed: int, vocab: int, rows: int = 1, length: int = LENGTH) -> torch.Tensor:
    """Return int64 [rows, length] of ids 3..vocab - 1."""
    generator = torch.Generator().manual_seed(seed + 1000)
    return torch.randint(3, vocab, (rows, length), generator=generator)


def float_logits(shape: Shape, seed: int, tensors: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Return float32 logits [1, L, V] of the plain transformers model with these weights (activations not rounded)."""
    model = build_model(shape, seed)
    missing, unexpected = model.load_state_dict({k: v.float() for k, v in tensors.items()}, strict=False)
    if set(missing) - ({"lm_head.weight"} if shape.tied else set()) or unexpected:
        raise SystemExit(f"missing {missing}, unexpected {unexpected}")
    with torch.no_grad():
        return model(ids, use_cache=False).logits


def sha256(tensor: torch.Tensor) -> str:
    """Return the SHA-256 of the float32 values in C order; minus zero counts as zero."""
    return hashlib.sha256((tensor.float() + 0.0).contiguous().numpy().tobytes()).hexdigest()


@dataclasses.dataclass
class Golden:
    """What a case stores besides the tool's own files."""

    case: str
    tool: str
    versions: dict[str, str]
    about: str
    formula: str
    seed: int
    shape: Shape
    weights: dict[str, torch.Tensor]
    ids: torch.Tensor
    logits: torch.Tensor
    tool_logits: torch.Tensor | None = None
    extra: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)


def write_golden(golden: Golden) -> None:
    """Write expected.safetensors and case.json next to the tool's files; refuse a folder that is too big."""
    folder = OUT / golden.case
    stored: dict[str, torch.Tensor] = {"ids": golden.ids, "logits": golden.logits.float()}
    if golden.tool_logits is not None:
        stored["tool_logits"] = golden.tool_logits.float()
    stored.update(golden.extra)
    total = 0
    for name in sorted(golden.weights, key=lambda n: golden.weights[n].numel()):
        size = 4 * golden.weights[name].numel()
        if total == 0 or total + size <= FULL_BYTES:
            stored[f"weight.{name}"] = golden.weights[name].float()
            total += size
    save_file({k: v.detach().clone().contiguous() for k, v in stored.items()}, folder / "expected.safetensors")
    if not all(bool(torch.isfinite(v).all()) for v in stored.values() if v.is_floating_point()):
        raise SystemExit(f"{golden.case}: a value isn't finite")
    config = json.loads((folder / "config.json").read_text())
    config.pop("_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    difference = None if golden.tool_logits is None else float((golden.tool_logits.float() - golden.logits).abs().max())
    case = {
        "case": golden.case,
        "tool": golden.tool,
        "versions": golden.versions,
        "about": golden.about,
        "formula": golden.formula,
        "seed": golden.seed,
        "shape": dataclasses.asdict(golden.shape),
        "weights_sha256": {k: sha256(v) for k, v in sorted(golden.weights.items())},
        "tool_logits_vs_logits_max_abs": difference,
        "notes": golden.notes,
    }
    (folder / "case.json").write_text(json.dumps(case, indent=2) + "\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    if size > LIMIT:
        raise SystemExit(f"{golden.case}: {size} bytes, limit {LIMIT}")
    print(f"{golden.case}: {size} bytes, {len(golden.weights)} weights, tool logits off by {difference}", flush=True)


def write_index() -> None:
    """Write index.json from the case.json files."""
    cases = []
    for path in sorted(OUT.glob("*/case.json")):
        case = json.loads(path.read_text())
        tensors = load_file(path.parent / "model.safetensors")
        cases.append(
            {
                **{key: case[key] for key in ("case", "tool", "versions", "about")},
                "bytes": sum(f.stat().st_size for f in path.parent.iterdir()),
                "dtypes": sorted({str(t.dtype).removeprefix("torch.") for t in tensors.values()}),
                "suffixes": sorted({name.rpartition(".")[2] for name in tensors}),
            }
        )
    (OUT / "index.json").write_text(json.dumps(cases, indent=1) + "\n")
    print(f"index: {len(cases)} cases, {sum(c['bytes'] for c in cases)} bytes")
