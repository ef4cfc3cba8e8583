"""Write tests/goldens/policies/inputs/: what openpi and lerobot do to images, prompts, states and actions.

    python tools/goldens/make_policy_inputs.py LEROBOT OPENPI      # checkouts of both projects

Environment: requirements-policies.txt and `pip install jax==0.10.2`. openpi's JAX resize runs in a process of its own.
Run make_policies.py and make_smolvla.py first: their tokenizers are used. inputs.json lists the cases with the names of
their arrays in inputs.safetensors; token ids, prompts and messages are in the JSON itself.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from policy_input_images import Arrays, attempt, conversion_case, image_cases
from safetensors.numpy import load_file, save_file

POLICIES = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "policies"
OUT = POLICIES / "inputs"
SEED = 31
TEXTS = [
    "pick up the red cup",
    "pick_up_the_red_cup",
    "  put the bowl\non the plate \n",
    "\n",
    "",
    "   ",
    "tab\tand  two   spaces",
    "_leading and trailing_",
    "Öffne die Schublade — 打开抽屉 🤖",
    "stack 12 blocks, 3 high; stop",
    "line one\n\nline two",
    "already ends with a newline\n",
    "e\u0301 is not \u00e9, \u00a0nbsp and \u2028 separator",
    "open the middle drawer and put the black bowl on the blue plate, " * 4,
]
STATES = {
    "middle": [0.0, 0.25, -0.5, 0.999],
    "edges": [-1.0, 1.0, -1.0 + 2 / 256, 1.0 - 2 / 256],
    "outside": [-1.5, 1.5, -1.0000001, 1.0000001],
    "not_a_number": [float("nan"), 0.1, float("inf"), float("-inf")],
    "one": [0.5],
}


class Listener:
    """A tokenizer that remembers the texts it was given."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.texts = tokenizer, []  # type: Any, list[str]

    def encode(self, text: str, **kwargs: Any) -> Any:
        self.texts.append(text)
        return self.tokenizer.encode(text, **kwargs)

    def __call__(self, text: Any, **kwargs: Any) -> Any:
        self.texts.extend(text)
        return self.tokenizer(text, **kwargs)


def prompt_cases(sources: SimpleNamespace, hugging_face: Any, bpe: Any) -> list[dict[str, Any]]:
    """Return what each project tokenizes for every text, with every state or none."""
    import torch
    from lerobot.lerobot_types import TransitionKey
    from lerobot.processor import NewLineTaskProcessorStep, TokenizerProcessorStep

    def with_openpi(text: str, state: list[float] | None, length: int) -> dict[str, Any]:
        tokenizer = sources.openpi_tokenizer.PaligemmaTokenizer(length)
        tokenizer._tokenizer = Listener(tokenizer._tokenizer)
        ids, mask = tokenizer.tokenize(text, None if state is None else np.asarray(state))
        return {"texts": tokenizer._tokenizer.texts, "ids": ids.tolist(), "valid": int(mask.sum())}

    def with_lerobot(text: str, state: list[float] | None, length: int, step: Any, tokenizer: Any) -> dict[str, Any]:
        listener = Listener(tokenizer)
        numbers = torch.tensor([state or [0.0]], dtype=torch.float32)
        transition: dict[Any, Any] = dict.fromkeys(TransitionKey)
        transition[TransitionKey.OBSERVATION] = {"observation.state": numbers}
        transition[TransitionKey.COMPLEMENTARY_DATA] = {"task": [text]}
        last = TokenizerProcessorStep(tokenizer=listener, max_length=length)
        found = last(step(transition))[TransitionKey.OBSERVATION]
        ids, mask = found["observation.language.tokens"][0], found["observation.language.attention_mask"][0]
        return {"texts": listener.texts, "ids": ids.tolist(), "valid": int(mask.sum())}

    pi05 = sources.processor_pi05.Pi05PrepareStateTokenizerProcessorStep
    cases: list[dict[str, Any]] = []
    plans = [(text, None, 40) for text in TEXTS] + [(TEXTS[0], state, 60) for state in STATES]
    plans += [(TEXTS[2], "edges", 60), (TEXTS[4], "middle", 60), (TEXTS[-1], "middle", 60), (TEXTS[0], "middle", 12)]
    for text, state_name, length in plans:
        state = STATES.get(state_name or "")
        case: dict[str, Any] = {"text": text, "state": state_name, "max_tokens": length}
        case["openpi"] = with_openpi(text, state, length)
        if state is None:
            case["lerobot_pi0"] = with_lerobot(
                text, None, length, sources.processor_pi0.Pi0NewLineProcessor(), hugging_face
            )
            case["smolvla"] = with_lerobot(text, None, length, NewLineTaskProcessorStep(), bpe)
            case["lerobot_pi05_memory"] = with_lerobot(
                text, None, length, pi05(include_state_in_prompt=False), hugging_face
            )
        else:
            case["lerobot_pi05"] = with_lerobot(text, state, length, pi05(), hugging_face)
        cases.append(case)
    return cases


def bin_case(sources: SimpleNamespace, arrays: Arrays) -> dict[str, Any]:
    """Return the arrays of all bin edges, their float64 and float32 neighbours and their codes."""
    edges = np.linspace(-1, 1, 257)
    wide = np.concatenate([edges, np.nextafter(edges, -9), np.nextafter(edges, 9), (edges[1:] + edges[:-1]) / 2])
    wide = np.concatenate([wide, [-1e9, 1e9, np.nan, np.inf, -np.inf, -0.0]])
    narrow = edges.astype(np.float32)
    narrow = np.concatenate([narrow, np.nextafter(narrow, np.float32(-9)), np.nextafter(narrow, np.float32(9))])
    found: dict[str, Any] = {}
    for name, values in (("float64", wide), ("float32", narrow)):
        tokenizer = sources.openpi_tokenizer.PaligemmaTokenizer(1 << 20)
        tokenizer._tokenizer = Listener(tokenizer._tokenizer)
        tokenizer.tokenize("", values)
        printed = tokenizer._tokenizer.texts[0].removeprefix("Task: , State: ").removesuffix(";\nAction: ")
        codes = np.array([int(word) for word in printed.split(" ")], dtype=np.int64)
        found[name] = {"values": arrays.add(f"bins/{name}", values), "codes": arrays.add(f"bins/{name}_codes", codes)}
    return found


def statistics(size: int) -> dict[str, np.ndarray]:
    """Return statistics in float64; dimension 1 has no spread at all, dimension 2 almost none."""
    random = np.random.default_rng(SEED)
    mean, std = random.normal(size=9), random.uniform(0.2, 2, 9)
    std[1], std[2] = 0.0, 1e-7
    found = {"mean": mean, "std": std, "q01": mean - 2.3 * std, "q99": mean + 2.3 * std}
    found |= {"min": mean - 3 * std, "max": mean + 3 * std, "q10": mean - 1.3 * std, "q90": mean + 1.3 * std}
    return {key: value[:size] for key, value in found.items()}


def normalization_cases(sources: SimpleNamespace, arrays: Arrays) -> list[dict[str, Any]]:
    """Return normalisation and its inverse, of both projects, in all modes, for statistics of several lengths."""
    import torch
    from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
    from lerobot.processor import NormalizerProcessorStep, UnnormalizerProcessorStep

    random = np.random.default_rng(SEED + 1)
    modes = {"quantile": "QUANTILES", "mean-std": "MEAN_STD", "min-max": "MIN_MAX", "quantile10": "QUANTILE10"}
    cases = []
    for size in (6, 4, 9, 1):
        numbers = statistics(size)
        for key, value in numbers.items():
            arrays.add(f"statistics/{size}/{key}", value)
        values = random.normal(size=(2, 3, 6)) * 1.5
        values[0, 0] = statistics(6)["mean"]
        for dtype in ("float32", "float64"):
            x = values.astype(dtype)
            name = arrays.add(f"values/{size}/{dtype}", x)
            for mode, lerobot_mode in modes.items():
                for inverse in (False, True):
                    runs: dict[str, Callable[[], Any]] = {}
                    if mode in ("quantile", "mean-std"):
                        stats = sources.normalize.NormStats(**{k: numbers[k] for k in ("mean", "std", "q01", "q99")})
                        transform = sources.transforms.Unnormalize if inverse else sources.transforms.Normalize
                        runs["openpi"] = partial(
                            lambda t, s, v, m: t({"actions": s}, use_quantiles=m == "quantile")({"actions": v})[
                                "actions"
                            ],
                            transform,
                            stats,
                            x.copy(),
                            mode,
                        )
                    step = UnnormalizerProcessorStep if inverse else NormalizerProcessorStep
                    normalizer = step(
                        features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(6,))},
                        norm_map={FeatureType.ACTION: NormalizationMode(lerobot_mode)},
                        stats={"action": {k: torch.from_numpy(v) for k, v in numbers.items()}},
                    )
                    runs["lerobot"] = partial(
                        lambda n, v, i: n._normalize_action(torch.from_numpy(v), inverse=i).numpy(),
                        normalizer,
                        x.copy(),
                        inverse,
                    )
                    for project, function in runs.items():
                        value, error = attempt(function)
                        case = {"project": project, "mode": mode, "inverse": inverse, "statistics": size}
                        key = f"normalize/{project}/{mode}/{'inverse' if inverse else 'forward'}/{size}/{dtype}"
                        case |= {"values": name, "error": error}
                        case["result"] = None if error else arrays.add(key, value)
                        cases.append(case)
    return cases


def action_cases(sources: SimpleNamespace, arrays: Arrays) -> dict[str, Any]:
    """Return delta and absolute actions with masks, and how many numbers each of openpi's robots gets back."""
    import torch
    from lerobot.processor import RelativeActionsProcessorStep
    from lerobot.processor.relative_action_processor import to_absolute_actions, to_relative_actions
    from openpi.policies import droid_policy, libero_policy

    random = np.random.default_rng(SEED + 2)
    actions, state = random.normal(size=(4, 8)).astype(np.float32), random.normal(size=10).astype(np.float32)
    arrays.add("delta/actions", actions)
    arrays.add("delta/state", state)
    found: dict[str, Any] = {"actions": "delta/actions", "state": "delta/state", "masks": []}
    transforms = sources.transforms
    for dims in ((6, -1), (3, -2, 2), (8,), (-8,), (7, -1)):
        mask = transforms.make_bool_mask(*dims)
        name = "_".join(str(d) for d in dims)
        entry = {"make_bool_mask": dims, "mask": mask}
        for kind, transform in (("absolute", transforms.AbsoluteActions), ("delta", transforms.DeltaActions)):
            value = transform(mask)({"actions": actions.copy(), "state": state.copy()})["actions"]
            entry[f"openpi_{kind}"] = arrays.add(f"delta/{name}/openpi_{kind}", value)
            change = to_absolute_actions if kind == "absolute" else to_relative_actions
            result = change(torch.from_numpy(actions)[None], torch.from_numpy(state)[None], mask)[0].numpy()
            entry[f"lerobot_{kind}"] = arrays.add(f"delta/{name}/lerobot_{kind}", result)
        found["masks"].append(entry)
    model = arrays.add("outputs/model", random.normal(size=(4, 32)).astype(np.float32))
    found["outputs"] = {"model": model}
    for name, output in (("libero", libero_policy.LiberoOutputs()), ("droid", droid_policy.DroidOutputs())):
        found["outputs"][name] = arrays.add(f"outputs/{name}", output({"actions": arrays.found[model]})["actions"])
    names = ["left_joint.pos", "left_Gripper.pos", "right_joint.pos", "right_gripper.pos"]
    for exclude in ([], ["gripper"], ["LEFT"], ["right_joint.pos", ""]):
        step = RelativeActionsProcessorStep(enabled=True, exclude_joints=exclude, action_names=names)
        found.setdefault("excluded", []).append({"names": names, "exclude": exclude, "mask": step._build_mask(6)})
    padded = transforms.PadStatesAndActions(32)({"state": state.copy()})["state"]
    found["outputs"]["padded_state"] = arrays.add("outputs/padded_state", padded)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("lerobot", type=Path)
    parser.add_argument("openpi", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "jax.safetensors"
        child = [Path(__file__).with_name("policy_input_images.py"), arguments.openpi, target]
        subprocess.run([sys.executable, *map(str, child)], check=True)
        jax = load_file(target)

    import PIL
    import torch
    import transformers
    from policies_sources import import_sources
    from policies_tokenizer import hugging_face_tokenizer

    if int(PIL.__version__.split(".")[0]) > 12:
        raise SystemExit(f"Pillow {PIL.__version__} rounds tall images differently; install pillow==11.2.1")
    torch.set_num_threads(1)
    pieces = POLICIES / "tokenizer" / "paligemma_tokenizer.model"
    sources = import_sources(arguments.lerobot, arguments.openpi, lambda: pieces)
    hugging_face = hugging_face_tokenizer(POLICIES / "tokenizer")
    bpe = transformers.AutoTokenizer.from_pretrained(POLICIES / "smolvla" / "vlm")
    arrays = Arrays()
    golden = {
        "versions": {m.__name__: m.__version__ for m in (np, torch, transformers, PIL)} | {"jax": "0.10.2"},
        "lerobot": "0.6.2 (7427f31)",
        "openpi": "15a9616",
        "tokenizer_sha256": hashlib.sha256(pieces.read_bytes()).hexdigest(),
        "images": image_cases(arrays, jax),
        "float_images": conversion_case(arrays),
        "states": {name: [str(v) for v in values] for name, values in STATES.items()},
        "prompts": prompt_cases(sources, hugging_face, bpe),
        "bins": bin_case(sources, arrays),
        "normalize": normalization_cases(sources, arrays),
        "actions": action_cases(sources, arrays),
    }
    OUT.mkdir(parents=True, exist_ok=True)
    save_file(arrays.found, OUT / "inputs.safetensors")
    (OUT / "inputs.safetensors").chmod(0o644)
    (OUT / "inputs.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
