"""openpi's side of the policy goldens: its checkpoint folders, transforms and sampling."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import safetensors.torch
import torch
from policies_cases import BASE, CAMERAS, LEFT, Case, images, noise, states
from policies_models import Recorder, Sizes, openpi_model, randomize


class OpenpiPolicy:
    """A tiny PI0Pytorch with openpi's transforms around it."""

    def __init__(self, sources: SimpleNamespace, sizes: Sizes, settings: dict[str, Any]) -> None:
        self.sources, self.sizes, self.settings = sources, sizes, settings
        self.model = openpi_model(sources, sizes, settings["pi05"], settings["horizon"])
        self.embed_time = sources.pi0_pytorch.create_sinusoidal_pos_embedding

    def use(self, stats: dict[str, Any], seed: int, precision: str) -> None:
        """Fix statistics and random weights; with `precision` bfloat16 the weights are rounded, and stay float32."""
        self.raw_stats = stats
        make = self.sources.normalize.NormStats
        used = {k: {name: v[name] for name in ("mean", "std", "q01", "q99")} for k, v in stats.items()}
        self.stats = {k: make(**v) for k, v in used.items()}
        randomize(self.model, seed)
        vlm = self.model.paligemma_with_expert.paligemma
        vlm.lm_head.weight = vlm.model.language_model.embed_tokens.weight
        self.precision = precision
        for value in self.model.parameters():  # not the buffers: openpi doesn't round the scale of the embeddings
            value.data = value.data.to(getattr(torch, precision)).to(torch.float32)

    def weights(self) -> dict[str, Any]:
        """Return the float32 tensors by name, both names of the tied pair included."""
        return dict(self.model.state_dict())

    def save(self, folder: Path) -> None:
        """Write the folder as openpi's converter does: save_model keeps one name of the tied pair."""
        folder.mkdir(parents=True, exist_ok=True)
        rounded = copy.deepcopy(self.model).to(getattr(torch, self.precision))
        safetensors.torch.save_model(rounded, str(folder / "model.safetensors"))
        config = {"action_dim": 32, "action_horizon": self.settings["horizon"]}
        config |= {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m", "precision": self.precision}
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        self.sources.normalize.save(folder / "assets" / self.settings["asset_id"], self.stats)

    def check_file(self, folder: Path) -> None:
        """Stop unless openpi's way of loading gives the weights back."""
        again = openpi_model(self.sources, self.sizes, self.settings["pi05"], self.settings["horizon"])
        vlm = again.paligemma_with_expert.paligemma
        vlm.lm_head.weight = vlm.model.language_model.embed_tokens.weight
        safetensors.torch.load_model(again, str(folder / "model.safetensors"))
        if any(not torch.equal(value, self.weights()[name]) for name, value in again.state_dict().items()):
            raise SystemExit(f"{folder}: the file doesn't hold the weights")

    def raw(self, case: Case) -> dict[str, Any]:
        """Return what goes in: image.CAMERA, state, noise (NumPy)."""
        batch = len(case.prompts)
        found = {f"image.{camera}": pixels for camera, pixels in images(case, batch).items()}
        state = states(case, self.raw_stats["state"], self.settings["state_size"], batch)
        return found | {"state": state, "noise": noise(case, self.settings["horizon"], 32)}

    def observation(self, raw: dict[str, Any], row: int, prompt: str, libero: bool) -> dict[str, Any]:
        """Return one observation as openpi's data transforms give it; missing cameras are black and masked."""
        if libero:
            given = {
                "observation/image": raw[f"image.{BASE}"][row],
                "observation/wrist_image": raw[f"image.{LEFT}"][row],
            }
            given |= {"observation/state": raw["state"][row], "prompt": prompt}
            result: dict[str, Any] = self.sources.libero.LiberoInputs(model_type="pi05")(given)
            return result
        black = np.zeros_like(next(v for k, v in raw.items() if k.startswith("image."))[row])
        views = {c: raw[f"image.{c}"][row] if f"image.{c}" in raw else black for c in CAMERAS}
        masks = {c: np.bool_(f"image.{c}" in raw) for c in CAMERAS}
        return {"image": views, "image_mask": masks, "state": raw["state"][row], "prompt": prompt}

    def preprocess(self, raw: dict[str, Any], row: int, prompt: str, libero: bool) -> tuple[dict[str, Any], Any]:
        """Run openpi's transforms on one observation; also returns the normalised state before padding."""
        transforms = self.sources.transforms
        data = self.observation(raw, row, prompt, libero)
        data = transforms.Normalize(self.stats, use_quantiles=self.settings["pi05"])(data)
        state = data["state"]
        data = transforms.ResizeImages(self.sizes.image, self.sizes.image)(data)
        tokenizer = self.sources.openpi_tokenizer.PaligemmaTokenizer(self.settings["max_tokens"])
        data = transforms.TokenizePrompt(tokenizer, self.settings["discrete_state"])(data)
        return transforms.PadStatesAndActions(32)(data), state

    def to_model(self, rows: list[dict[str, Any]]) -> SimpleNamespace:
        """Return the batch as openpi's Observation.from_dict makes it: float32 images in -1..1, [B, 3, H, W]."""

        def stack(key: str, sub: str | None = None) -> Any:
            return torch.from_numpy(np.stack([np.asarray(r[key] if sub is None else r[key][sub]) for r in rows]))

        views = {c: stack("image", c).to(torch.float32).permute(0, 3, 1, 2) / 255.0 * 2.0 - 1.0 for c in CAMERAS}
        masks = {c: stack("image_mask", c) for c in CAMERAS}
        tokens, token_mask = stack("tokenized_prompt"), stack("tokenized_prompt_mask")
        return _observation(views, masks, stack("state"), tokens, token_mask)

    def run(self, case: Case, raw: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all tensors of a scenario (`raw` if given: its inputs), and what the JSON file says about it."""
        raw = raw or self.raw(case)
        libero = self.settings["asset_id"].endswith("libero") and set(case.cameras) == {BASE, LEFT}
        pairs = [self.preprocess(raw, row, prompt, libero) for row, prompt in enumerate(case.prompts)]
        observation = self.to_model([data for data, _ in pairs])
        with Recorder(self.model) as recorder, torch.no_grad():
            noisy = torch.from_numpy(raw["noise"])
            final = self.model.sample_actions(torch.device("cpu"), observation, noise=noisy, num_steps=case.steps)
        tensors = raw | recorder.collect(final, self.embed_time)
        tensors["state_normalized"] = np.stack([state for _, state in pairs])
        rows = [self.postprocess(s, a) for s, a in zip(observation.state.numpy(), final.numpy(), strict=True)]
        tensors["actions"] = np.stack([actions for actions, _ in rows])
        if case.name == "three_cameras":
            tensors["actions_absolute"] = np.stack([absolute for _, absolute in rows])
        return tensors, {"libero_transforms": libero}

    def postprocess(self, state: Any, actions: Any) -> tuple[Any, Any]:
        """Return one row's actions, un-normalised and cut, as they are and made absolute (last dimension excluded)."""
        transforms, size = self.sources.transforms, self.settings["action_size"]
        outputs = {"state": state, "actions": actions}
        outputs = transforms.Unnormalize(self.stats, use_quantiles=self.settings["pi05"])(outputs)
        mask = transforms.make_bool_mask(size - 1, -1)
        absolute = transforms.AbsoluteActions(mask)({"state": outputs["state"], "actions": outputs["actions"].copy()})
        return outputs["actions"][:, :size], absolute["actions"][:, :size]

    def sample(self, tensors: dict[str, Any], steps: int) -> Any:
        """Run the model alone on preprocessed tensors; float32 [B, horizon, 32]."""
        given = {k: torch.from_numpy(np.asarray(v)) for k, v in tensors.items()}
        views = dict(zip(CAMERAS, given["pixels"].unbind(1), strict=True))
        masks = dict(zip(CAMERAS, given["image_mask"].unbind(1), strict=True))
        state = torch.nn.functional.pad(given["state_normalized"], (0, 32 - given["state_normalized"].shape[-1]))
        observation = _observation(views, masks, state, given["tokens"], given["token_mask"])
        result: Any = self.model.sample_actions(torch.device("cpu"), observation, noise=given["noise"], num_steps=steps)
        return result.numpy()


def _observation(views: Any, masks: Any, state: Any, tokens: Any, token_mask: Any) -> SimpleNamespace:
    prompt = {"tokenized_prompt": tokens, "tokenized_prompt_mask": token_mask}
    unused = {"token_ar_mask": None, "token_loss_mask": None}
    return SimpleNamespace(images=views, image_masks=masks, state=state, **prompt, **unused)
