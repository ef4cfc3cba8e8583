"""Compare the openpi goldens with openpi's own PyTorch model (make_policies.py runs the copy in lerobot's tests).

    python3.11 -m venv env2
    env2/bin/pip install torch==2.13.0 transformers==4.53.2 numpy==2.4.6 safetensors==0.8.0 pillow==13.0.0
    cp -r openpi/src/openpi/models_pytorch/transformers_replace/* env2/lib/python3.11/site-packages/transformers/
    env2/bin/python tools/goldens/policies_check_openpi.py --openpi openpi

Loads checkpoint/ strictly and runs ten steps on the stored `pixels`, `tokens`, `state_normalized` and `noise`, once in
float32 and once in bfloat16 as openpi serves its policies. Fails where float32 differs by more than 1e-5.
"""

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import safetensors.torch
import torch

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "policies"
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


def import_openpi(openpi: Path) -> tuple[Any, Any, Any]:
    """Return gemma_pytorch, pi0_pytorch, and the placeholder of openpi.models.gemma, which is JAX code."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(openpi / "src"))
    import openpi.models
    import openpi.shared

    gemma, tools = ModuleType("openpi.models.gemma"), ModuleType("openpi.shared.image_tools")
    sys.modules |= {gemma.__name__: gemma, tools.__name__: tools}
    openpi.models.gemma, openpi.shared.image_tools = gemma, tools
    from openpi.models_pytorch import gemma_pytorch, pi0_pytorch

    return gemma_pytorch, pi0_pytorch, gemma


def shrink(modules: tuple[Any, Any, Any], sizes: dict[str, int]) -> None:
    """Make openpi's constructors build models of `sizes`, as golden.json names them."""
    gemma_pytorch, pi0_pytorch, gemma = modules
    from transformers import GemmaForCausalLM, PaliGemmaForConditionalGeneration

    def gemma_config(variant: str) -> SimpleNamespace:
        part = "" if variant == "gemma_2b" else "expert_"
        shared = {"depth": sizes["layers"], "num_heads": 8, "num_kv_heads": 1, "head_dim": sizes["head_dim"]}
        return SimpleNamespace(width=sizes[part + "width"], mlp_dim=sizes[part + "mlp"], **shared)

    def small_vlm(config: Any) -> Any:
        config.image_token_index = config._vocab_size = config.text_config.vocab_size = 420
        vision = config.vision_config
        vision.hidden_size, vision.num_hidden_layers = sizes["vision_width"], sizes["vision_layers"]
        vision.intermediate_size, vision.projection_dim = sizes["vision_mlp"], sizes["width"]
        vision.image_size = sizes["image"]
        return PaliGemmaForConditionalGeneration(config=config)

    def small_expert(config: Any) -> Any:
        config.vocab_size = 420
        return GemmaForCausalLM(config=config)

    gemma.get_config = gemma_config
    gemma_pytorch.PaliGemmaForConditionalGeneration, gemma_pytorch.GemmaForCausalLM = small_vlm, small_expert
    original = sys.modules["openpi.models_pytorch.preprocessing_pytorch"].preprocess_observation_pytorch
    size = (sizes["image"], sizes["image"])
    pi0_pytorch._preprocessing = SimpleNamespace(
        preprocess_observation_pytorch=lambda seen, train: original(seen, train=train, image_resolution=size)
    )


def difference(modules: tuple[Any, Any, Any], folder: Path, document: dict[str, Any], dtype: str) -> float:
    """Return how far the actions of ten steps are from `three_cameras/actions_normalized`."""
    golden = safetensors.torch.load_file(folder / "golden.safetensors")
    given = {k.split("/")[1]: v for k, v in golden.items() if k.startswith("three_cameras/")}
    config = {"action_dim": 32, "action_horizon": document["settings"]["horizon"], "pi05": document["policy"] == "pi05"}
    config |= {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m", "pytorch_compile_mode": None}
    model = modules[1].PI0Pytorch(SimpleNamespace(dtype=dtype, **config)).eval()
    torch.set_float32_matmul_precision("highest")
    safetensors.torch.load_model(model, str(folder / "checkpoint" / "model.safetensors"))
    if dtype == "bfloat16":
        model.paligemma_with_expert.to_bfloat16_for_selected_params("bfloat16")
    state = given["state_normalized"]
    observation = SimpleNamespace(
        images=dict(zip(CAMERAS, given["pixels"].unbind(1), strict=True)),
        image_masks=dict(zip(CAMERAS, given["image_mask"].unbind(1), strict=True)),
        state=torch.nn.functional.pad(state, (0, 32 - state.shape[-1])),
        tokenized_prompt=given["tokens"],
        tokenized_prompt_mask=given["token_mask"],
        token_ar_mask=None,
        token_loss_mask=None,
    )
    actions = model.sample_actions(torch.device("cpu"), observation, noise=given["noise"], num_steps=10)
    return float((actions - given["actions_normalized"]).abs().max())


def main() -> None:
    """Print the differences of pi05_libero and pi0."""
    parser = argparse.ArgumentParser(description="Compare the openpi goldens with openpi's own model.")
    parser.add_argument("--openpi", type=Path, required=True, help="a checkout of openpi")
    modules = import_openpi(parser.parse_args().openpi.resolve())
    for name in ("pi05_libero", "pi0"):
        document = json.loads((GOLDENS / name / "golden.json").read_text())
        shrink(modules, document["facts"]["sizes"])
        found = {dtype: difference(modules, GOLDENS / name, document, dtype) for dtype in ("float32", "bfloat16")}
        print(name, found)
        if found["float32"] > 1e-5:
            raise SystemExit(f"{name}: openpi's own model gives other actions")


if __name__ == "__main__":
    main()
