"""Tiny pi0 and pi0.5 models of the original classes with random weights, and a recorder of what happens inside."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from policies_tokenizer import VOCAB_SIZE


@dataclass(frozen=True)
class Sizes:
    """The sizes that are shrunk; everything else (8 query heads, 1 key head, 16 vision heads, patch 14) stays."""

    image: int
    vision_width: int
    vision_layers: int
    vision_mlp: int
    width: int
    mlp: int
    expert_width: int
    expert_mlp: int
    layers: int
    head_dim: int


def shrink(sources: SimpleNamespace, sizes: Sizes) -> None:
    """Make the constructors of lerobot and of openpi's copy build models of `sizes`."""

    def gemma_config(variant: str) -> SimpleNamespace:
        width, mlp = (sizes.width, sizes.mlp) if variant == "gemma_2b" else (sizes.expert_width, sizes.expert_mlp)
        shared = {"depth": sizes.layers, "num_heads": 8, "num_kv_heads": 1, "head_dim": sizes.head_dim}
        return SimpleNamespace(width=width, mlp_dim=mlp, **shared)

    def small_vlm(config: Any) -> Any:
        config.image_token_index = config._vocab_size = config.text_config.vocab_size = VOCAB_SIZE
        vision = config.vision_config
        vision.hidden_size, vision.num_hidden_layers = sizes.vision_width, sizes.vision_layers
        vision.intermediate_size, vision.projection_dim = sizes.vision_mlp, sizes.width
        vision.image_size = sizes.image
        return sources.pi_gemma.PaliGemmaForConditionalGenerationWithPiGemma(config=config)

    def small_expert(config: Any) -> Any:
        config.vocab_size = VOCAB_SIZE
        return sources.pi_gemma.PiGemmaForCausalLM(config=config)

    for module in (sources.modeling_pi0, sources.modeling_pi05, sources.gemma_pytorch):
        module.PaliGemmaForConditionalGenerationWithPiGemma = small_vlm
        module.PiGemmaForCausalLM = small_expert
    sources.modeling_pi0.get_gemma_config = sources.modeling_pi05.get_gemma_config = gemma_config
    sources.gemma.get_config = gemma_config


def openpi_model(sources: SimpleNamespace, sizes: Sizes, pi05: bool, horizon: int, dtype: str = "float32") -> Any:
    """Return openpi's PI0Pytorch (the copy in lerobot's tests) that takes images of `sizes.image`."""
    variants = {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m"}
    config = SimpleNamespace(action_dim=32, action_horizon=horizon, pi05=pi05, dtype=dtype, **variants)
    config.pytorch_compile_mode = None
    model = sources.pi0_pytorch.PI0Pytorch(config)
    torch.set_float32_matmul_precision("highest")
    preprocess = sources.preprocessing_pytorch.preprocess_observation_pytorch
    model._preprocess_observation = lambda observation, train: tuple(
        list(x.values()) if isinstance(x, dict) else x
        for x in _fields(preprocess(observation, train=train, image_resolution=(sizes.image, sizes.image)))
    )
    return model.eval()


def _fields(observation: Any) -> tuple[Any, ...]:
    tokens = (observation.tokenized_prompt, observation.tokenized_prompt_mask)
    return (observation.images, observation.image_masks, *tokens, observation.state)


def randomize(model: Any, seed: int) -> None:
    """Give every parameter random values of a size that lets each of them matter.

    Matrices: N(0, 1/fan_in), queries and keys 1.5 times that so that attention isn't near uniform; biases N(0, 0.2);
    weights of LayerNorm 1 + N(0, 0.3), of RMSNorm (where 1 is added) N(0, 0.3); embeddings such that scaled rows have
    variance 1.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in sorted(model.named_parameters()):
            draw = torch.randn(value.shape, generator=generator)
            if "norm" in name and name.endswith(".weight") and "dense" not in name:
                value.copy_(0.3 * draw + (1.0 if "layer_norm" in name or "post_layernorm" in name else 0.0))
            elif name.endswith("bias"):
                value.copy_(0.2 * draw)
            elif "embed" in name and "patch" not in name:
                value.copy_(draw * (0.5 if "position" in name else 1 / math.sqrt(value.shape[1])))
            else:
                gain = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
                value.copy_(gain * draw / math.sqrt(value[0].numel()))


class Recorder:
    """Records the tensors of one `sample_actions` by wrapping methods of the model; use it as a context."""

    def __init__(self, model: Any) -> None:
        self.model, self.joint = model, model.paligemma_with_expert
        self.tensors: dict[str, Any] = {}
        self.lists: dict[str, list[Any]] = {
            name: [] for name in ("vision", "feature", "time", "cond", "suffix", "v", "x")
        }

    def __enter__(self) -> "Recorder":
        self.old = {name: getattr(self.model, name) for name in ("embed_prefix", "embed_suffix", "denoise_step")}
        self.old_image, self.old_forward = self.joint.embed_image, self.joint.forward
        projector = self.joint.paligemma.model.multi_modal_projector
        self.hook = projector.register_forward_hook(lambda _, args, __: self.lists["vision"].append(args[0]))
        for name in self.old:
            setattr(self.model, name, getattr(self, name))
        self.joint.embed_image, self.joint.forward = self.embed_image, self.forward
        return self

    def __exit__(self, *_: Any) -> None:
        self.hook.remove()
        for name, method in self.old.items():
            setattr(self.model, name, method)
        self.joint.embed_image, self.joint.forward = self.old_image, self.old_forward

    def embed_image(self, image: Any, **kwargs: Any) -> Any:
        feature = self.old_image(image, **kwargs)
        self.lists["feature"].append(feature)
        return feature

    def embed_prefix(self, images: Any, img_masks: Any, tokens: Any, masks: Any, *args: Any) -> Any:
        result = self.old["embed_prefix"](images, img_masks, tokens, masks, *args)
        self.tensors |= {"pixels": torch.stack(list(images), dim=1), "image_mask": torch.stack(list(img_masks), dim=1)}
        self.tensors |= {"tokens": tokens, "token_mask": masks}
        self.tensors |= {"prefix_embeddings": result[0], "prefix_mask": result[1]}
        return result

    def forward(self, **kwargs: Any) -> Any:
        outputs, cache = self.old_forward(**kwargs)
        if cache is not None:
            self.tensors["keys"] = torch.stack([layer.keys for layer in cache.layers])
            self.tensors["values"] = torch.stack([layer.values for layer in cache.layers])
        return outputs, cache

    def embed_suffix(self, *args: Any) -> Any:
        result = self.old["embed_suffix"](*args)
        self.lists["suffix"].append(result[0])
        if result[3] is not None:
            self.lists["cond"].append(result[3])
        return result

    def denoise_step(self, *args: Any, **kwargs: Any) -> Any:
        names = dict(zip(("prefix_pad_masks", "past_key_values", "x_t", "timestep"), args[-4:], strict=False)) | kwargs
        v_t = self.old["denoise_step"](*args, **kwargs)
        self.lists["time"].append(names["timestep"].clone())  # openpi adds to it in place
        self.lists["x"].append(names["x_t"])
        self.lists["v"].append(v_t)
        return v_t

    def collect(self, final: Any, embed_time: Any) -> dict[str, Any]:
        """Return NumPy tensors; `final` is the result of the loop, `embed_time` the sine-cosine function.

        Keys and values are [layers, positions, head_dim], masked positions removed, for a batch of one.
        """
        result = dict(self.tensors)
        result["vision_hidden"] = torch.stack(self.lists["vision"], dim=1)
        result["image_features"] = torch.stack(self.lists["feature"], dim=1)
        result["times"] = torch.stack([t[:1] for t in self.lists["time"]])[:, 0]
        width = self.model.action_in_proj.out_features
        result["time_embedding"] = embed_time(result["times"], width, 4e-3, 4.0, torch.device("cpu")).float()
        if self.lists["cond"]:
            result["adarms_cond"] = torch.stack([c[0] for c in self.lists["cond"]])
        result["suffix_embeddings"] = torch.stack(self.lists["suffix"])
        result["v_t"], result["x_t"] = torch.stack(self.lists["v"]), torch.stack([*self.lists["x"][1:], final])
        result["actions_normalized"] = final
        if len(final) == 1:
            valid = result["prefix_mask"][0]
            result["keys"], result["values"] = (result[k][:, 0, 0][:, valid] for k in ("keys", "values"))
        return {name: np.ascontiguousarray(tensor.detach().numpy()) for name, tensor in result.items()}
