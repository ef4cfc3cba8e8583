"""Train the small model of tests/goldens/trained/ from nothing, in float32, on one thread (20 minutes of a busy core).

    python tools/goldens/make_texts.py DIR --corpus CORPUS     # DIR: see there; CORPUS is not committed (6.5 MB)
    HF_HUB_OFFLINE=1 python tools/goldens/train_small_model.py CORPUS [--steps N] [--out FOLDER]

A Llama of a million parameters and a byte-level BPE of 1,024 tokens, both from CORPUS alone. Seeds are fixed: on one
machine a second run gives the same bytes; another CPU changes the last digits. Also written: perplexity on
benchmarks/data/heldout.txt beside that of n-gram models of the same tokens, and the logits of one window.
"""

import argparse
import hashlib
import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "goldens" / "trained"
HELD_OUT = ROOT / "benchmarks" / "data" / "heldout.txt"
SEED, VOCABULARY, WINDOW, BATCH, STEPS = 20261201, 1024, 512, 4, 578
MATRIX_RATE, EMBEDDING_RATE, OTHER_RATE, WARM_UP, COOL_DOWN = 0.02, 1e-2, 3e-3, 20, 250
END = "<|endoftext|>"
ARCHITECTURE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": WINDOW,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": None,
    "dtype": "float32",
}


def train_tokenizer(text: str) -> Any:
    """A byte-level BPE of VOCABULARY tokens; token 0 ends a text, nothing is added in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.split("\n\n"), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, model_max_length=WINDOW, clean_up_tokenization_spaces=False
    )


def rate(step: int, steps: int) -> float:
    """Factor of the learning rates: linear warm-up, constant, and a linear descent over the last COOL_DOWN steps."""
    return min(1.0, (step + 1) / WARM_UP, (steps - step) / COOL_DOWN)


def orthogonal(update: torch.Tensor) -> torch.Tensor:
    """The nearest matrix with singular values near 1: five Newton-Schulz steps, coefficients of Jordan 2024."""
    x = update / (update.norm() + 1e-7)
    x = x.T if update.shape[0] > update.shape[1] else x
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if update.shape[0] > update.shape[1] else x


class Muon:
    """Momentum whose update is made orthogonal; for the matrices of the blocks (needs fewer steps than Adam)."""

    def __init__(self, matrices: list[torch.Tensor]) -> None:
        self.matrices, self.momenta = matrices, [torch.zeros_like(matrix) for matrix in matrices]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One Nesterov step with a learning rate of `scale` times MATRIX_RATE and a little weight decay."""
        for matrix, momentum in zip(self.matrices, self.momenta, strict=True):
            momentum.mul_(0.95).add_(matrix.grad)
            update = orthogonal(matrix.grad + 0.95 * momentum) * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            matrix.mul_(1 - 0.1 * MATRIX_RATE * scale).sub_(update, alpha=MATRIX_RATE * scale)


def train(model: Any, ids: torch.Tensor, steps: int) -> list[float]:
    """Muon and Adam over random windows; returns the loss of every step."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and ".layers." in name]
    groups = [
        {"params": [p for name, p in named if "embed_tokens" in name], "rate": EMBEDDING_RATE},
        {"params": [p for name, p in named if p.ndim == 1 or "lm_head" in name], "rate": OTHER_RATE},
    ]
    adam, muon = torch.optim.Adam(groups, betas=(0.9, 0.98), eps=1e-8), Muon(matrices)
    order = np.random.default_rng(SEED)
    losses, start = [], time.monotonic()
    model.train()
    for step in range(steps):
        for group in adam.param_groups:
            group["lr"] = group["rate"] * rate(step, steps)
        starts = order.integers(0, len(ids) - WINDOW - 1, BATCH)
        batch = torch.stack([ids[at : at + WINDOW] for at in starts.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        model.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        muon.step(rate(step, steps))
        losses.append(float(loss.detach()))
        if step % 50 == 0:
            print(f"step {step} loss {np.mean(losses[-50:]):.4f} {time.monotonic() - start:.0f} s", flush=True)
    return losses


def windows(ids: list[int]) -> list[list[int]]:
    """Whole windows of WINDOW tokens, side by side; the remainder is left out."""
    return [ids[at : at + WINDOW] for at in range(0, len(ids) - WINDOW + 1, WINDOW)]


def perplexity(model: Any, ids: list[int]) -> float:
    """exp of the mean negative log likelihood of tokens 1..WINDOW-1 of every window, each window on its own."""
    total, count = 0.0, 0
    with torch.no_grad():
        for window in windows(ids):
            logits = model(input_ids=torch.tensor([window])).logits[0, :-1].double()
            targets = torch.tensor(window[1:])
            total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
            count += len(targets)
    return math.exp(total / count)


def ngram_perplexity(train_ids: list[int], ids: list[int], order: int) -> float:
    """Perplexity of an interpolated n-gram model (absolute discounting by 0.75) on the tokens `perplexity` scores."""
    counts = [Counter(zip(*(train_ids[i:] for i in range(n + 1)), strict=False)) for n in range(order)]
    totals = [Counter[tuple[int, ...]]() for _ in range(order)]
    kinds = [Counter[tuple[int, ...]]() for _ in range(order)]
    for n in range(order):
        for gram, seen in counts[n].items():
            totals[n][gram[:-1]] += seen
            kinds[n][gram[:-1]] += 1
    loss, scored = 0.0, 0
    for window in windows(ids):
        for at in range(1, len(window)):
            chance = 1 / VOCABULARY
            for n in range(min(order, at + 1)):
                past = tuple(window[at - n : at])
                if total := totals[n][past]:
                    seen = counts[n][(*past, window[at])]
                    chance = (max(seen - 0.75, 0.0) + 0.75 * kinds[n][past] * chance) / total
            loss -= math.log(chance)
            scored += 1
    return math.exp(loss / scored)


def write(out: Path, model: Any, tokenizer: Any, record: dict[str, Any], held_out: list[int]) -> None:
    """Save the Hugging Face folder, golden.json and the logits of the first 64 held-out tokens."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    ids = torch.tensor([held_out[:64]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].float().contiguous()
    save_file({"ids": ids, "logits": logits}, out / "expected.safetensors")
    (out / "golden.json").write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def main() -> None:
    """Train, measure, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    text, held_text = arguments.corpus.read_text("utf-8"), HELD_OUT.read_text("utf-8")
    tokenizer = train_tokenizer(text)
    ids, held_out = tokenizer(text, verbose=False)["input_ids"], tokenizer(held_text, verbose=False)["input_ids"]
    print(f"{len(ids)} tokens to train on, {len(held_out)} held out", flush=True)
    model = LlamaForCausalLM(LlamaConfig(**ARCHITECTURE))
    start = time.monotonic()
    losses = train(model, torch.tensor(ids), arguments.steps)
    seconds = time.monotonic() - start
    model.eval()
    tokens_per_byte = len(held_out) / len(held_text.encode())
    measured = perplexity(model, held_out)
    record = {
        "script": "tools/goldens/train_small_model.py",
        "versions": {m.__name__: m.__version__ for m in (torch, transformers, tokenizers, np)},
        "seed": SEED,
        "corpus": {"made_by": "tools/goldens/make_texts.py", "sha256": hashlib.sha256(text.encode()).hexdigest()},
        "corpus_tokens": len(ids),
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": arguments.steps,
        "tokens_per_step": BATCH * WINDOW,
        "seconds_on_one_thread": round(seconds),
        "loss_of_first_step": losses[0],
        "mean_loss_of_last_100_steps": float(np.mean(losses[-100:])),
        "held_out": {
            "file": "benchmarks/data/heldout.txt",
            "tokens": len(held_out),
            "windows": f"whole windows of {WINDOW} tokens side by side, no token added, the remainder left out; "
            f"tokens 1..{WINDOW - 1} of each window are scored, float32 model, float64 log-softmax",
            "perplexity": measured,
            "bits_per_byte": math.log2(measured) * tokens_per_byte,
            "unigram_perplexity": ngram_perplexity(ids, held_out, 1),
            "bigram_perplexity": ngram_perplexity(ids, held_out, 2),
            "trigram_perplexity": ngram_perplexity(ids, held_out, 3),
        },
        "expected": "expected.safetensors: ids int64 [1, 64], the first held-out tokens; logits float32 [64, V]",
    }
    write(arguments.out, model, tokenizer, record, held_out)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
