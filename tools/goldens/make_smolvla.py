"""Write tests/goldens/policies/smolvla/: a tiny random SmolVLA checkpoint and what lerobot computes with it.

    python tools/goldens/make_smolvla.py LEROBOT OPENPI      # checkouts of both projects

Environment: requirements-policies.txt. `checkpoint/` is the folder that lerobot writes, `vlm/` the part of the folder
named by its `vlm_model_name` that is needed besides (config and tokenizer: the checkpoint itself does not hold the
sizes of the VLM). lerobot asks the hub for that folder; here the three Auto classes are led to `vlm/`.
"""

import argparse
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import policies_sources
import safetensors
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "policies" / "smolvla"
HUB_NAME = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
SEED = 20
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<fake_token_around_image>", "<image>", "<global-img>"]
SPECIAL += ["<end_of_utterance>"]
SENTENCES = [
    "pick up the red block and put it into the blue bowl",
    "put the mug on the left shelf, then close the drawer",
    "fold the towel and place it next to the plate",
    "open the top drawer; pick up the spoon",
    "move the arm back to the start",
]
LONG = "put the red block into the blue bowl, " * 4 + "then go home"
SCENARIOS: dict[str, dict[str, Any]] = {
    "two_cameras": {"images": [{FRONT: "small", WRIST: "tall"}], "prompt": ["pick up the red block"], "steps": 10},
    "one_step": {"images": [{FRONT: "small", WRIST: "tall"}], "prompt": ["pick up the red block"], "steps": 1},
    "one_camera": {"images": [{FRONT: "square"}], "prompt": ["Fold the towel!\n"], "steps": 3},
    "front_missing": {"images": [{WRIST: "tall"}], "prompt": ["open drawer 12"], "steps": 3},
    "long_prompt": {"images": [{FRONT: "square", WRIST: "small"}], "prompt": [LONG], "steps": 3},
    "empty_prompt": {"images": [{FRONT: "square", WRIST: "small"}], "prompt": [""], "steps": 1},
    "batch": {
        "images": [{FRONT: "small", WRIST: "square"}, {FRONT: "small_b", WRIST: "square_b"}],
        "prompt": ["pick up the spoon", "put the mug on the left shelf, naïvely"],
        "steps": 3,
    },
    "padded": {
        "images": [{FRONT: "small", WRIST: "tall"}],
        "prompt": ["pick up the red block"],
        "steps": 3,
        "overrides": {"pad_language_to": "max_length", "prefix_length": 90},
    },
    "small_images": {
        "images": [{FRONT: "small", WRIST: "tall"}],
        "prompt": ["pick up the red block"],
        "steps": 3,
        "overrides": {"resize_imgs_with_padding": [24, 24]},
    },
    "image_tokens": {
        "images": [{FRONT: "small", WRIST: "tall"}],
        "prompt": ["pick up the red block"],
        "steps": 3,
        "overrides": {"add_image_special_tokens": True},
    },
    "bfloat16": {
        "images": [{FRONT: "small", WRIST: "tall"}],
        "prompt": ["pick up the red block"],
        "steps": 3,
        "dtype": "bfloat16",
    },
}
SAME_INPUTS = ("one_step", "padded", "small_images", "image_tokens", "bfloat16")  # as two_cameras, to compare with it
DETAILED = "two_cameras"  # the scenario that also keeps images, keys and values
IMAGE_SIZES = {"small": (21, 34), "small_b": (21, 34), "tall": (75, 52), "square": (32, 32), "square_b": (32, 32)}


def make_tokenizer() -> Any:
    """Return a byte-level BPE tokenizer of SmolVLM2's kind: digits apart, no token in front, padded with <|im_end|>."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(SENTENCES, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=8192,
        bos_token="<|im_start|>",
        eos_token="<end_of_utterance>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
        extra_special_tokens={
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "image_token": "<image>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
    )


def make_vlm_config(vocab: int) -> Any:
    """Return the config of the tiny VLM: five text layers (one more than are used), head_dim not hidden / heads."""
    text = {
        "model_type": "llama",
        "hidden_size": 40,
        "intermediate_size": 48,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 14,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 130000.0},  # has no effect in SmolVLA
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    vision = {
        "hidden_size": 24,
        "intermediate_size": 36,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "image_size": 32,
        "patch_size": 4,
    }
    return transformers.SmolVLMConfig(
        text_config=text, vision_config=vision, scale_factor=2, image_token_id=4, pad_token_id=2
    )


def lead_to(folder: Path, tokenizer: Any, modules: SimpleNamespace) -> None:
    """Make lerobot's look-ups on the hub read `folder`."""
    config_class, tokenizer_class = transformers.AutoConfig, transformers.AutoTokenizer
    modules.expert.AutoConfig = SimpleNamespace(from_pretrained=lambda _: config_class.from_pretrained(folder))
    modules.expert.AutoProcessor = SimpleNamespace(from_pretrained=lambda _: SimpleNamespace(tokenizer=tokenizer))
    modules.tokens.AutoTokenizer = SimpleNamespace(from_pretrained=lambda _: tokenizer_class.from_pretrained(folder))


def randomise(policy: Any) -> None:
    """Give every parameter random values of healthy size."""
    generator = torch.Generator().manual_seed(SEED)
    for name, parameter in policy.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            values = 1 + 0.3 * values
        elif name.endswith("bias") or "embed_tokens" in name or "position_embedding" in name:
            values *= 0.2
        else:
            gain = 1.5 if "q_proj" in name or "k_proj" in name else 0.5 if "down_proj" in name or "fc2" in name else 1.0
            values *= gain / math.sqrt(math.prod(parameter.shape[1:]))
        parameter.data.copy_(values)


def make_config(modules: SimpleNamespace) -> Any:
    """Return the policy's config: two cameras and an empty one, 7 actions from 6 numbers of state."""
    feature, kind = modules.configs.PolicyFeature, modules.configs.FeatureType
    return modules.smolvla_config.SmolVLAConfig(
        input_features={
            "observation.state": feature(type=kind.STATE, shape=(6,)),
            FRONT: feature(type=kind.VISUAL, shape=(3, 21, 34)),
            WRIST: feature(type=kind.VISUAL, shape=(3, 75, 52)),
        },
        output_features={"action": feature(type=kind.ACTION, shape=(7,))},
        device="cpu",
        chunk_size=6,
        n_action_steps=5,
        resize_imgs_with_padding=(32, 32),
        empty_cameras=1,
        tokenizer_max_length=24,
        num_vlm_layers=4,
        push_to_hub=False,
    )


def make_statistics() -> dict[str, dict[str, torch.Tensor]]:
    """Return statistics of the state and the actions; one standard deviation of each is zero."""
    generator = torch.Generator().manual_seed(SEED + 1)
    found = {}
    for key, size in (("observation.state", 6), ("action", 7)):
        mean, std = torch.randn(size, generator=generator), 0.1 + torch.rand(size, generator=generator)
        std[size - 2] = 0.0
        found[key] = {"mean": mean, "std": std, "min": mean - 3 * std, "max": mean + 3 * std}
    return found


def write_checkpoint(modules: SimpleNamespace) -> None:
    """Write checkpoint/ with the VLM and the expert in bfloat16 and the projections in float32."""
    policy = modules.smolvla.SmolVLAPolicy(make_config(modules))
    randomise(policy)
    policy.model.vlm_with_expert.to(torch.bfloat16)
    policy.save_pretrained(OUT / "checkpoint")
    pipelines = modules.processor.make_smolvla_pre_post_processors(policy.config, make_statistics())
    for pipeline in pipelines:
        pipeline.save_pretrained(OUT / "checkpoint")


def raw_observation(scenario: dict[str, Any], images: dict[str, torch.Tensor], state: torch.Tensor) -> dict[str, Any]:
    """Return the batch that a robot or a data set gives: images [B, 3, H, W] in 0..1, state [B, 6], tasks."""
    batch: dict[str, Any] = {"observation.state": state.clone(), "task": list(scenario["prompt"])}
    for key in scenario["images"][0]:
        pictures = torch.stack([images[names[key]] for names in scenario["images"]])
        batch[key] = (pictures.to(torch.float32) / 255).permute(0, 3, 1, 2).contiguous()
    return batch


class Recorder:
    """Keeps what passes through the parts of a policy while it computes a chunk of actions."""

    def __init__(self, policy: Any, detailed: bool, sincos: Any) -> None:
        width, cpu = policy.model.vlm_with_expert.expert_hidden_size, torch.device("cpu")
        self.embed_time = lambda times: sincos(times, width, policy.config.min_period, policy.config.max_period, cpu)
        self.tensors: dict[str, torch.Tensor] = {}
        self.steps: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.features: list[torch.Tensor] = []
        model, expert = policy.model, policy.model.vlm_with_expert
        embed_image, embed_prefix, denoise, forward = (
            expert.embed_image,
            model.embed_prefix,
            model.denoise_step,
            expert.forward,
        )

        def vision(_module: Any, _inputs: Any, outputs: Any) -> None:
            self.tensors.setdefault("vision_hidden", outputs.last_hidden_state)

        def image(pixels: torch.Tensor) -> Any:
            if detailed:
                self.tensors[f"image.{len(self.features)}"] = pixels
            self.features.append(embed_image(pixels))
            return self.features[-1]

        def prefix(*args: Any, **kwargs: Any) -> Any:
            embedded = embed_prefix(*args, **kwargs)
            self.tensors["model_state"] = kwargs["state"]
            self.tensors["prefix_embeddings"], self.tensors["prefix_mask"], self.tensors["prefix_att"] = embedded
            return embedded

        def step(**kwargs: Any) -> Any:
            velocity = denoise(**kwargs)
            self.steps.append((kwargs["timestep"], kwargs["x_t"], velocity))
            return velocity

        def whole(**kwargs: Any) -> Any:
            outputs, cache = forward(**kwargs)
            if kwargs["inputs_embeds"][1] is None:
                self.tensors["prefix_attention"] = kwargs["attention_mask"]
                self.tensors["prefix_positions"] = kwargs["position_ids"]
                if detailed:
                    self.tensors["prefix_hidden"] = outputs[0]
                    for i, layer in enumerate(cache.layers):
                        self.tensors[f"key.{i}"], self.tensors[f"value.{i}"] = layer.keys, layer.values
            elif "suffix_embeddings" not in self.tensors:
                self.tensors["suffix_embeddings"] = kwargs["inputs_embeds"][1]
                self.tensors["suffix_attention"] = kwargs["attention_mask"]
                self.tensors["suffix_positions"] = kwargs["position_ids"]
            return outputs, cache

        if detailed:
            expert.get_vlm_model().vision_model.register_forward_hook(vision)
        expert.embed_image, model.embed_prefix, model.denoise_step, expert.forward = image, prefix, step, whole

    def finish(self) -> dict[str, torch.Tensor]:
        """Return all tensors; times [n], x_t [n, B, H, 32] before each step, v_t [n, B, H, 32]."""
        self.tensors["image_features"] = torch.stack(self.features)
        times, inputs, velocities = zip(*self.steps, strict=True)
        self.tensors["times"] = torch.stack([time[0] for time in times])
        self.tensors["time_embeddings"] = self.embed_time(self.tensors["times"]).to(torch.float32)
        self.tensors["x_t"], self.tensors["v_t"] = torch.stack(inputs), torch.stack(velocities)
        return self.tensors


def run(name: str, images: dict[str, torch.Tensor], modules: SimpleNamespace) -> dict[str, torch.Tensor]:
    """Return the tensors of one scenario."""
    scenario = SCENARIOS[name]
    size, seed = len(scenario["prompt"]), SEED + 100 + 10 * list(SCENARIOS).index(name)
    same = name in SAME_INPUTS
    generator = torch.Generator().manual_seed(SEED + 100 if same else seed)
    statistics = make_statistics()["observation.state"]
    state = statistics["mean"] + 2 * statistics["std"] * torch.randn(size, 6, generator=generator)
    noise = torch.randn(size, 6, 32, generator=generator)

    config = modules.configs.PreTrainedConfig.from_pretrained(OUT / "checkpoint")
    config.num_steps = scenario["steps"]
    for key, value in scenario.get("overrides", {}).items():
        setattr(config, key, value)
    policy = modules.smolvla.SmolVLAPolicy.from_pretrained(OUT / "checkpoint", config=config)
    if scenario.get("dtype") == "bfloat16":
        policy.model.vlm_with_expert.to(torch.bfloat16)
    pre, post = modules.processor.make_smolvla_pre_post_processors(config, make_statistics())
    batch = pre(raw_observation(scenario, images, state))
    recorder = Recorder(policy, name == DETAILED, modules.smolvla.create_sinusoidal_pos_embedding)
    actions = policy.predict_action_chunk(batch, noise=noise)
    tensors = recorder.finish()
    tensors |= {"state": state, "noise": noise, "normalized_state": batch["observation.state"]}
    tensors["token_ids"] = batch["observation.language.tokens"]
    tensors["token_mask"] = batch["observation.language.attention_mask"]
    tensors["normalized_actions"], tensors["actions"] = actions, post(actions)
    return {key: value.detach().clone().contiguous() for key, value in tensors.items()}


def check(found: dict[str, dict[str, torch.Tensor]]) -> dict[str, float]:
    """Return how far scenarios are apart; raises where a golden would not catch an error."""
    reference = found["two_cameras"]["actions"]
    apart = {
        "one_step": (found["one_step"]["actions"] - reference).abs().max().item(),
        "image_tokens": (found["image_tokens"]["actions"] - found["padded"]["actions"]).abs().max().item(),
        "small_images": (found["small_images"]["actions"] - found["padded"]["actions"]).abs().max().item(),
        "bfloat16": (found["bfloat16"]["actions"] - found["padded"]["actions"]).abs().max().item(),
    }
    if min(apart.values()) < 1e-3:
        raise SystemExit(f"scenarios are too close: {apart}")
    return apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("lerobot", type=Path)
    parser.add_argument("openpi", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policies_sources.import_sources(arguments.lerobot, arguments.openpi, Path)
    import lerobot.configs
    import lerobot.policies.smolvla.configuration_smolvla
    import lerobot.policies.smolvla.modeling_smolvla
    import lerobot.policies.smolvla.processor_smolvla
    import lerobot.policies.smolvla.smolvlm_with_expert
    import lerobot.processor.tokenizer_processor

    smolvla = lerobot.policies.smolvla
    modules = SimpleNamespace(
        configs=lerobot.configs,
        smolvla=smolvla.modeling_smolvla,
        smolvla_config=smolvla.configuration_smolvla,
        processor=smolvla.processor_smolvla,
        expert=smolvla.smolvlm_with_expert,
        tokens=lerobot.processor.tokenizer_processor,
    )
    tokenizer = make_tokenizer()
    (OUT / "vlm").mkdir(parents=True, exist_ok=True)
    make_vlm_config(len(tokenizer)).save_pretrained(OUT / "vlm")
    tokenizer.save_pretrained(OUT / "vlm")
    lead_to(OUT / "vlm", transformers.AutoTokenizer.from_pretrained(OUT / "vlm"), modules)
    write_checkpoint(modules)

    generator = np.random.default_rng(SEED)
    images = {
        name: torch.from_numpy(generator.integers(0, 256, (*size, 3), dtype=np.uint8))
        for name, size in IMAGE_SIZES.items()
    }
    found = {name: run(name, images, modules) for name in SCENARIOS}
    tensors = {f"input/{name}": picture for name, picture in images.items()}
    tensors |= {f"{name}/{key}": value for name, parts in found.items() for key, value in parts.items()}
    save_file(tensors, OUT / "golden.safetensors")
    golden = {
        "seed": SEED,
        "versions": {m.__name__: m.__version__ for m in (torch, transformers, tokenizers, safetensors, np)},
        "lerobot": "0.6.2 (7427f31)",
        "apart": check(found),
        "scenarios": {name: {**SCENARIOS[name], "tensors": sorted(found[name])} for name in SCENARIOS},
    }
    (OUT / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
