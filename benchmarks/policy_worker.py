"""One contender of policy_race.py: a process that loads a policy once and infers a chunk when it is asked to.

    python policy_worker.py ours '{"bundle": ...}'        in edgewright's environment
    python policy_worker.py lerobot '{"checkpoint": ...}' in that of tools/goldens/requirements-policies.txt

Speaks JSON, a line a message: `{"ready": ...}` when loaded, then for every line `{"chunks": n}` on stdin the
milliseconds of n chunks and the first chunk's normalized actions. stdout is for that alone; what libraries print goes
to stderr.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Answer = tuple[dict[str, float], list[list[float]]]


def ours(job: dict[str, Any]) -> Callable[[], Answer]:
    """Return a function that infers from the raw observation: resizing, tokenizing and normalizing are timed."""
    import numpy as np

    from edgewright.runtime.policy import Policy

    policy = Policy.load(job["bundle"], threads=job["threads"], check=False)
    with np.load(job["inputs"]) as file:
        arrays = {name: file[name] for name in file.files}
    images = {name.removeprefix("image."): arrays[name] for name in arrays if name.startswith("image.")}
    observation = {"images": images, "state": arrays["state"], "prompt": str(arrays["prompt"])}

    def infer() -> Answer:
        chunk = policy.infer(observation, arrays["noise"])
        times = {name: chunk.timings[name] for name in ("prepare", "vision", "prefix", "total")}
        actions = chunk.normalized[:, : policy.spec.action_dim].tolist()
        return times | {"denoise": sum(chunk.timings["denoise"])}, actions

    return infer


def lerobot(job: dict[str, Any]) -> Callable[[], Answer]:
    """Return a function that infers with lerobot's class from tokens and images of the model's size.

    Tokenizing and normalizing are done before and not timed. `compile` is a mode of torch.compile, or None.
    """
    sys.path.insert(0, str(ROOT / "tools" / "goldens"))
    import numpy as np
    import policies_models
    import torch
    from policies_lerobot import LeRobotPolicy
    from policies_sources import import_sources
    from safetensors.torch import load_file

    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    sources = import_sources(Path(job["lerobot"]), Path(job["openpi"]), lambda: Path(os.devnull))
    sizes = dict(job["sizes"])
    policies_models.VOCAB_SIZE = sizes.pop("vocab")
    sizes = policies_models.Sizes(**sizes)
    policies_models.shrink(sources, sizes)
    cameras = job["cameras"]
    settings = {
        "image_keys": [f"observation.images.{name}" for name in cameras],
        "image_shapes": [[3, sizes.image, sizes.image]] * len(cameras),
        "state_size": job["state_dim"],
        "action_size": job["action_dim"],
        "horizon": job["horizon"],
        "max_tokens": job["max_tokens"],
        "config": {"compile_model": True, "compile_mode": job["compile"]} if job["compile"] else {},
    }
    made = LeRobotPolicy(sources, "pi05", sizes, settings, None)
    weights = load_file(Path(job["checkpoint"]) / "model.safetensors")
    joint = "paligemma_with_expert.paligemma."
    weights[f"{joint}model.language_model.embed_tokens.weight"] = weights[f"{joint}lm_head.weight"]
    made.policy.model.load_state_dict(weights)
    del weights

    with np.load(job["inputs"]) as file:
        arrays = {name: file[name] for name in file.files}
    batch = {
        f"observation.images.{name}": torch.from_numpy(arrays[f"image.{name}"]).permute(2, 0, 1)[None] / 255
        for name in cameras
        if f"image.{name}" in arrays
    }
    batch["observation.language.tokens"] = torch.from_numpy(arrays["tokens"])[None]
    batch["observation.language.attention_mask"] = torch.from_numpy(arrays["token_mask"])[None]
    noise = torch.from_numpy(arrays["noise"])[None]

    def infer() -> Answer:
        start = time.perf_counter()
        actions = made.policy.predict_action_chunk(batch, noise=noise)
        return {"total": 1000 * (time.perf_counter() - start)}, actions[0].tolist()

    return infer


def main() -> None:
    """Load, warm up, and answer until stdin ends."""
    job = json.loads(sys.argv[2])
    os.sched_setaffinity(0, job["cpus"])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start = time.perf_counter()
    infer = {"ours": ours, "lerobot": lerobot}[sys.argv[1]](job)
    loaded = time.perf_counter()
    for _ in range(2):
        infer()
    warm = time.perf_counter()
    print(json.dumps({"ready": True, "load_s": loaded - start, "warm_up_s": warm - loaded}), file=out, flush=True)
    for line in sys.stdin:
        cpu = time.process_time()
        answers = [infer() for _ in range(json.loads(line)["chunks"])]
        times = [times for times, _ in answers]
        result = {"times": times, "actions": answers[0][1], "cpu_s": time.process_time() - cpu}
        print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
