"""LeRobot's side of the policy goldens: its checkpoint folders, processors and sampling."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from policies_cases import CAMERAS, Case, committed_actions, images, noise, states
from policies_models import Recorder, Sizes, randomize

HUB_TOKENIZER = "google/paligemma-3b-pt-224"


class LeRobotPolicy:
    """A tiny PI05Policy or PI0Policy with its two processors.

    `keys` are the image features in the order of config.json, one for each of `CAMERAS`; a key that contains
    `empty_camera` is added by `empty_cameras` and never has an image.
    """

    def __init__(
        self, sources: SimpleNamespace, kind: str, sizes: Sizes, settings: dict[str, Any], tokenizer: Any
    ) -> None:
        self.sources, self.kind, self.settings = sources, kind, settings
        module = getattr(sources, f"modeling_{kind}")
        self.embed_time = module.create_sinusoidal_pos_embedding
        self.keys = dict(zip(CAMERAS, settings["image_keys"], strict=True))
        self.config = self._config(sizes)
        self.policy = getattr(module, "PI05Policy" if kind == "pi05" else "PI0Policy")(self.config).eval()
        sources.tokenizer_processor.AutoTokenizer = SimpleNamespace(from_pretrained=lambda _: tokenizer)

    def _config(self, sizes: Sizes) -> Any:
        feature, kinds = self.sources.configs.PolicyFeature, self.sources.configs.FeatureType
        settings = self.settings
        shown = [key for key in settings["image_keys"] if "empty_camera" not in key]
        shapes = settings["image_shapes"]
        inputs = {k: feature(kinds.VISUAL, tuple(s)) for k, s in zip(shown, shapes, strict=True)}
        inputs["observation.state"] = feature(kinds.STATE, (settings["state_size"],))
        module = getattr(self.sources, f"modeling_{self.kind}")
        make = getattr(module, "PI05Config" if self.kind == "pi05" else "PI0Config")
        return make(
            device="cpu",
            input_features=inputs,
            output_features={"action": feature(kinds.ACTION, (settings["action_size"],))},
            image_resolution=(sizes.image, sizes.image),
            empty_cameras=len(settings["image_keys"]) - len(shown),
            chunk_size=settings["horizon"],
            n_action_steps=settings["horizon"],
            tokenizer_max_length=settings["max_tokens"],
            **settings.get("config", {}),
        )

    def processors(self, stats: dict[str, Any]) -> tuple[Any, Any]:
        """Return lerobot's preprocessor and postprocessor for the current config."""
        module = getattr(self.sources, f"processor_{self.kind}")
        pipelines: tuple[Any, Any] = getattr(module, f"make_{self.kind}_pre_post_processors")(self.config, stats)
        return pipelines

    def use(self, stats: dict[str, Any], seed: int | None = None, weights: dict[str, Any] | None = None) -> None:
        """Fix the statistics and the weights: random ones of `seed`, or the given ones of a model without prefix."""
        self.stats = stats
        self.pre, self.post = self.processors(stats)
        if weights is None:
            randomize(self.policy.model, seed or 0)
        else:
            self.policy.model.load_state_dict(weights)

    def save(self, folder: Path, with_tokenizer: bool) -> None:
        """Write the folder with lerobot's own functions; without the tokenizer, as releases until 0.6.1 did."""
        self.policy.save_pretrained(folder)
        if not with_tokenizer:
            step = self.sources.tokenizer_processor.TokenizerProcessorStep
            original, step.save_artifacts = step.save_artifacts, lambda *_: {}
        self.pre.save_pretrained(folder)
        self.post.save_pretrained(folder)
        if not with_tokenizer:
            step.save_artifacts = original
        for name in ("README.md", ".gitattributes"):
            (folder / name).unlink(missing_ok=True)

    def check_file(self, folder: Path) -> None:
        """Stop unless lerobot loads the weights and the processors back, strictly."""
        again = type(self.policy).from_pretrained(folder, strict=True)
        weights = self.policy.state_dict()
        if any(not torch.equal(value, weights[name]) for name, value in again.state_dict().items()):
            raise SystemExit(f"{folder}: the file doesn't hold the weights")
        for pipeline in (self.pre, self.post):
            loaded = type(pipeline).from_pretrained(folder, config_filename=f"{pipeline.name}.json")
            for key, tensors in pipeline.state_dict().items():
                if any(not torch.equal(v.flatten(), loaded.state_dict()[key][k].flatten()) for k, v in tensors.items()):
                    raise SystemExit(f"{folder}: {key} doesn't hold the statistics")

    def raw(self, case: Case) -> dict[str, Any]:
        """Return what goes in: image.CAMERA, state, noise (NumPy)."""
        batch = len(case.prompts)
        found = {f"image.{camera}": pixels for camera, pixels in images(case, batch).items()}
        found = {k: v for k, v in found.items() if "empty_camera" not in self.keys[k.removeprefix("image.")]}
        state = states(case, self.stats["observation.state"], self.settings["state_size"], batch)
        return found | {"state": state, "noise": noise(case, self.settings["horizon"], 32)}

    def batch(self, raw: dict[str, Any], prompts: tuple[str, ...]) -> dict[str, Any]:
        """Return lerobot's observation: float32 images [B, 3, H, W] in 0..1, the state, the task."""
        images = {k.removeprefix("image."): v for k, v in raw.items() if k.startswith("image.")}
        batch: dict[str, Any] = {
            self.keys[camera]: torch.from_numpy(pixels).permute(0, 3, 1, 2).to(torch.float32) / 255
            for camera, pixels in images.items()
        }
        return batch | {"observation.state": torch.from_numpy(raw["state"]), "task": list(prompts)}

    def run(self, case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all tensors of a scenario, and what the JSON file says about it."""
        raw = self.raw(case)
        processed = self.pre(self.batch(raw, case.prompts))
        extra: dict[str, Any] = {}
        if case.committed:
            raw["committed_actions"] = committed_actions(case, case.committed, self.settings["action_size"])
            self.config.rtc_config = self.sources.rtc.RTCConfig(enabled=True, mode="trained")
            self.policy.init_rtc_processor()
            left_over = torch.from_numpy(raw["committed_actions"])
            extra = {"inference_delay": case.committed, "prev_chunk_left_over": left_over}
        with Recorder(self.policy.model) as recorder:
            noisy, finals = torch.from_numpy(raw["noise"]), []
            original = self.policy.model.sample_actions
            self.policy.model.sample_actions = lambda *a, **k: finals.append(original(*a, **k)) or finals[-1]
            actions = self.policy.predict_action_chunk(processed, noise=noisy, num_steps=case.steps, **extra)
            self.policy.model.sample_actions = original
        if case.committed:
            self.config.rtc_config = self.policy.rtc_processor = self.policy.model.rtc_processor = None
        tensors = raw | recorder.collect(finals[0], self.embed_time)
        tensors["state_normalized"] = processed["observation.state"].numpy()
        tensors["actions"] = self.post(actions).numpy()
        if case.name == "three_cameras":
            tensors["actions_absolute"] = self.absolute(raw, case.prompts, actions)
        return tensors, {"texts": list(processed["task"])}

    def absolute(self, raw: dict[str, Any], prompts: tuple[str, ...], actions: Any) -> Any:
        """Return the actions of a policy that was trained on relative actions, the last dimension excluded."""
        size = self.settings["action_size"]
        self.config.use_relative_actions, self.config.relative_exclude_joints = True, ["gripper"]
        self.config.action_feature_names = [f"joint_{i}" for i in range(size - 1)] + ["gripper"]
        pre, post = self.processors(self.stats)
        pre(self.batch(raw, prompts))
        result = post(actions).numpy()
        self.config.use_relative_actions, self.config.action_feature_names = False, None
        return result

    def sample(self, tensors: dict[str, Any], steps: int) -> Any:
        """Run the model alone on preprocessed tensors; float32 [B, horizon, 32]."""
        given = {k: torch.from_numpy(np.asarray(v)) for k, v in tensors.items()}
        views, masks = list(given["pixels"].unbind(1)), list(given["image_mask"].unbind(1))
        state = torch.nn.functional.pad(given["state_normalized"], (0, 32 - given["state_normalized"].shape[-1]))
        states = () if self.kind == "pi05" else (state.float(),)
        call = (views, masks, given["tokens"], given["token_mask"], *states)
        result: Any = self.policy.model.sample_actions(*call, noise=given["noise"], num_steps=steps)
        return result.numpy()


def dataset_statistics(state: dict[str, Any], action: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    """Return statistics as a LeRobot dataset has them: also of images (unused by these policies), and counts."""
    count = {"count": np.array([1234])}
    rng = np.random.default_rng(77)
    stats = {"observation.state": state | count, "action": action | count}
    for key in keys:
        values = {name: rng.uniform(0.1, 0.9, (3, 1, 1)) for name in ("mean", "std", "q01", "q99")}
        stats[key] = values | {"min": np.zeros((3, 1, 1)), "max": np.ones((3, 1, 1))} | count
    return stats
