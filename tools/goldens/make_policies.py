"""Write tests/goldens/policies/: pi0.5 and pi0 of lerobot and openpi with tiny random weights.

    python3.11 -m venv env && env/bin/pip install -r tools/goldens/requirements-policies.txt
    git clone https://github.com/huggingface/lerobot && git -C lerobot checkout 7427f3180
    git clone https://github.com/Physical-Intelligence/openpi && git -C openpi checkout 15a9616
    HF_HUB_OFFLINE=1 env/bin/python tools/goldens/make_policies.py --lerobot lerobot --openpi openpi

Takes 10 s. Cases: pi05 pi05_libero pi0 pi0_lerobot; name some to make only those. lerobot is the unreleased 0.6.2: the
release 0.6.1 has no trained real-time chunking and doesn't save its tokenizer. See policies_sources.py for how Python
3.11 reads lerobot and how openpi is read without JAX.
"""

import argparse
import importlib.metadata
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import policies_cases as cases
import sentencepiece
import torch
from policies_lerobot import LeRobotPolicy, dataset_statistics
from policies_models import Sizes, shrink
from policies_openpi import OpenpiPolicy
from policies_sources import import_sources
from policies_tokenizer import hugging_face_tokenizer, train_tokenizer
from safetensors.numpy import save_file

OUT = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "policies"
COMMITS = {"lerobot": "7427f3180 (0.6.2 before its release)", "openpi": "15a9616"}
SMALL = Sizes(28, 32, 2, 36, 24, 44, 20, 36, 3, 8)
LIBERO = Sizes(42, 48, 2, 36, 40, 52, 32, 44, 3, 16)
PLAIN = Sizes(28, 32, 2, 28, 20, 36, 24, 28, 2, 8)
GROUPS = {
    cases.IMAGES: ("pixels",),
    cases.VISION: ("vision_hidden", "image_features"),
    cases.PREFIX: ("prefix_embeddings", "prefix_mask"),
    cases.CACHE: ("keys", "values"),
    cases.STEPS: ("times", "time_embedding", "adarms_cond", "suffix_embeddings", "v_t", "x_t"),
}
BOTH_WAYS = {"pi05": ("three_cameras", "middle_camera_missing", "truncated_prompt", "unclean_prompt", "state_edges")}
KEYS_PI05 = [f"observation.images.{camera}" for camera in cases.CAMERAS]
KEYS_PI0 = ["observation.images.top", "observation.images.wrist", "observation.images.empty_camera_0"]
SETTINGS: dict[str, dict[str, Any]] = {
    "pi05": {
        "project": "lerobot", "state_size": 8, "action_size": 7, "horizon": 12, "max_tokens": 80, "pi05": True,
        "discrete_state": True, "image_keys": KEYS_PI05, "image_shapes": [[3, 37, 53], [3, 61, 29], [3, 28, 28]],
        "config": {"rtc_training_max_delay": 4},
    },
    "pi05_libero": {
        "project": "openpi", "state_size": 8, "action_size": 7, "horizon": 10, "max_tokens": 40, "pi05": True,
        "discrete_state": False, "asset_id": "physical-intelligence/libero",
    },
    "pi0": {
        "project": "openpi", "state_size": 14, "action_size": 14, "horizon": 9, "max_tokens": 32, "pi05": False,
        "discrete_state": False, "asset_id": "trossen",
    },
    "pi0_lerobot": {
        "project": "lerobot", "state_size": 14, "action_size": 14, "horizon": 9, "max_tokens": 32, "pi05": False,
        "discrete_state": False, "image_keys": KEYS_PI0, "image_shapes": [[3, 37, 53], [3, 61, 29]],
    },
}  # fmt: skip
"""What a reader must know about a policy; openpi's folders say little of it."""


def build(name: str, sources: SimpleNamespace, tokenizer: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Write the checkpoint folder `name`; returns its policy, the same weights in the other project, and facts."""
    settings, folder = SETTINGS[name], OUT / name / "checkpoint"
    if folder.parent.exists():
        shutil.rmtree(folder.parent)
    sizes = {"pi05": SMALL, "pi05_libero": LIBERO}.get(name, PLAIN)
    shrink(sources, sizes)
    kind = "pi05" if settings["pi05"] else "pi0"
    state = cases.statistics(101, settings["state_size"] + (2 if name == "pi0" else 0), _constant(name))
    action = cases.statistics(102, settings["action_size"], _constant(name))
    openpi = OpenpiPolicy(sources, sizes, settings | {"asset_id": settings.get("asset_id", "")})
    lerobot_settings = SETTINGS["pi05" if kind == "pi05" else "pi0_lerobot"] | {"horizon": settings["horizon"]}
    lerobot = LeRobotPolicy(sources, kind, sizes, lerobot_settings, tokenizer)
    stats = dataset_statistics(state, action, lerobot.settings["image_keys"][: len(lerobot_settings["image_shapes"])])
    seed = 5 if kind == "pi05" else 6
    openpi.use({"state": state, "actions": action}, seed, "bfloat16" if name == "pi05_libero" else "float32")
    lerobot.use(stats, weights=openpi.weights())
    if settings["project"] == "openpi":
        openpi.save(folder)
        openpi.check_file(folder)
        return openpi, lerobot, {"sizes": vars(sizes)}
    lerobot.save(folder, with_tokenizer=name == "pi05")
    lerobot.check_file(folder)
    return lerobot, openpi, {"sizes": vars(sizes)}


def _constant(name: str) -> tuple[int, ...]:
    return {"pi05": (5,), "pi05_libero": (2, 6)}.get(name, (3,))


def keep(case: cases.Case, tensors: dict[str, Any], pi05: bool) -> dict[str, Any]:
    """Return the tensors that a scenario stores."""
    optional = {name for names in GROUPS.values() for name in names}
    wanted = {name for group in case.keep for name in GROUPS[group]}
    if pi05:
        wanted.discard("suffix_embeddings")
    return {name: value for name, value in tensors.items() if name not in optional or name in wanted}


def both_ways(openpi: Any, case: cases.Case, raw: dict[str, Any]) -> dict[str, Any]:
    """Return what openpi's pipeline makes of a lerobot scenario, with the same statistics and weights."""
    found, _ = openpi.run(case, raw)
    names = ["tokens", "token_mask", "image_mask", "state_normalized", "actions_normalized", "actions"]
    if cases.IMAGES in case.keep:
        names.append("pixels")
    return {f"openpi.{name}": found[name] for name in names}


def sensitivity(policy: Any, tensors: dict[str, Any]) -> dict[str, float]:
    """Return how far the actions of three steps move when an input changes; a masked camera must not move them."""
    base = policy.sample(tensors, 3)

    def moved(**changed: Any) -> float:
        return float(np.abs(policy.sample(tensors | changed, 3) - base).max())

    pixels, tokens, mask = (tensors[k].copy() for k in ("pixels", "tokens", "token_mask"))
    pixels[:, 0] = pixels[:, 0, :, ::-1]
    tokens[:, 2] = (tokens[:, 2] + 5) % 400
    mask[:, -1] = True
    result = {"first_camera_flipped": moved(pixels=pixels), "one_token_changed": moved(tokens=tokens)}
    result["one_padding_token_valid"] = moved(token_mask=mask)
    result["state_shifted_by_0.1"] = moved(state_normalized=tensors["state_normalized"] + 0.1)
    last = tensors["image_mask"].copy()
    last[:, -1] = False
    masked = policy.sample(tensors | {"image_mask": last}, 3)
    result["last_camera_masked"] = float(np.abs(masked - base).max())
    pixels = tensors["pixels"].copy()
    pixels[:, -1] = 0.5 - pixels[:, -1]
    again = policy.sample(tensors | {"image_mask": last, "pixels": pixels}, 3)
    result["content_of_a_masked_camera"] = float(np.abs(again - masked).max())
    return result


def write(name: str, sources: SimpleNamespace, tokenizer: Any) -> None:
    """Write the checkpoint `name` with golden.json and golden.safetensors."""
    policy, other, facts = build(name, sources, tokenizer)
    settings = SETTINGS[name]
    scenarios = cases.common_cases() + ([cases.committed_case()] if name == "pi05" else [])
    stored, records, one_step = {}, [], 0.0
    for case in scenarios:
        if name == "pi0_lerobot" and case.cameras not in ((cases.BASE,), (cases.BASE, cases.LEFT), cases.CAMERAS):
            continue
        tensors, said = policy.run(case)
        if not case.committed:
            final = other.sample(tensors, case.steps)
            tensors["actions_normalized_other_schedule"] = final
            if case.steps == 1:
                one_step = max(one_step, float(np.abs(final - tensors["actions_normalized"]).max()))
        if case.name in BOTH_WAYS.get(name, ()):
            tensors |= both_ways(other, case, policy.raw(case))
        if case.name == "three_cameras":
            facts["sensitivity"] = sensitivity(policy, tensors)
        chosen = keep(case, tensors, settings["pi05"])
        stored |= {f"{case.name}/{key}": np.ascontiguousarray(value) for key, value in chosen.items()}
        record = {"name": case.name, "note": case.note, "steps": case.steps, "prompts": list(case.prompts)} | said
        record["cameras"] = [c for c in case.cameras if f"image.{c}" in chosen]
        record["committed"] = case.committed
        records.append(record | {"tensors": sorted(chosen)})
    facts["one_step_max_abs_difference_of_the_projects"] = one_step
    check(name, facts)
    save_file(stored, OUT / name / "golden.safetensors")
    hidden = ("project",)
    document = {"project": settings["project"], "versions": versions(), "policy": "pi05" if settings["pi05"] else "pi0"}
    document |= {"settings": {k: v for k, v in settings.items() if k not in hidden}, "facts": facts}
    document["scenarios"] = records
    (OUT / name / "golden.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(name, json.dumps(facts), {p.name: p.stat().st_size for p in sorted((OUT / name).rglob("*")) if p.is_file()})


def check(name: str, facts: dict[str, Any]) -> None:
    """Stop where a golden would hide an error: an input without effect, or projects that differ."""
    moved = facts["sensitivity"]
    without = {"content_of_a_masked_camera"} | ({"state_shifted_by_0.1"} if SETTINGS[name]["pi05"] else set())
    for key, value in moved.items():
        if key == "last_camera_masked" and name == "pi0_lerobot":
            continue  # its last camera is an empty one
        if (value != 0.0) if key in without else (value < 1e-2):
            raise SystemExit(f"{name}: {key} moves the actions by {value}")
    if facts["one_step_max_abs_difference_of_the_projects"] > 1e-6:
        raise SystemExit(f"{name}: lerobot and openpi differ after one step: {facts}")


def check_tokenizer(model: Path, tokenizer: Any) -> None:
    """Stop where the Hugging Face tokenizer and the SentencePiece file disagree about a prompt."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    prompts = (cases.SHORT, cases.OTHER, cases.LONG, cases.TOO_LONG, cases.UNCLEAN)
    for text in (*prompts, *(f"Task: {p}, State: 1 -1 255;\nAction: " for p in prompts)):
        if pieces.encode(text, add_bos=True) != tokenizer(text)["input_ids"]:
            raise SystemExit(f"the two tokenizers disagree about {text!r}")


def versions() -> dict[str, str]:
    """Return the versions that the values depend on."""
    names = ("torch", "transformers", "numpy", "sentencepiece", "pillow", "safetensors")
    return COMMITS | {name: importlib.metadata.version(name) for name in names}


def main() -> None:
    """Write the named checkpoints (default all) and the tokenizer."""
    parser = argparse.ArgumentParser(description="Write tests/goldens/policies/.")
    parser.add_argument("names", nargs="*", choices=[*SETTINGS, []], default=[])
    parser.add_argument("--lerobot", type=Path, required=True, help="a checkout of lerobot")
    parser.add_argument("--openpi", type=Path, required=True, help="a checkout of openpi")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = train_tokenizer(OUT / "tokenizer")
    sources = import_sources(arguments.lerobot.resolve(), arguments.openpi.resolve(), lambda: model)
    tokenizer = hugging_face_tokenizer(OUT / "tokenizer")
    check_tokenizer(model, tokenizer)
    for name in arguments.names or SETTINGS:
        write(name, sources, tokenizer)


if __name__ == "__main__":
    main()
