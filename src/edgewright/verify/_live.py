"""Runs a checkpoint with transformers and writes what its modules give. Not part of the package: it is run as a file.

    PYTHON _live.py CHECKPOINT_FOLDER REQUEST.npz ANSWER.npz

REQUEST has `ids` int64 `[1, n]` and `names`, module paths. ANSWER has `logits` float32 `[n, vocab]`, `versions`, and
`out:<name>` float32 `[1, n, ...]` for each name whose module gives such a tensor. Paths are matched from their end, as
wrappers put something before them. float32, eager attention, code of transformers itself only.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Load, run, write."""
    torch = importlib.import_module("torch")
    transformers = importlib.import_module("transformers")
    folder, request, answer = map(Path, sys.argv[1:4])
    with np.load(request, allow_pickle=False) as data:
        ids, names = data["ids"], [str(name) for name in data["names"]]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind: Any = getattr(transformers, str((config.get("architectures") or [""])[0]), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):  # the file may name anything
        kind = transformers.AutoModelForCausalLM
    torch.set_num_threads(2)
    model = kind.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
    )
    model = model.float().eval()
    results = {}
    modules = dict(model.named_modules())

    def watch(name: str, module: Any) -> None:
        def keep(_: Any, __: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple | list) else output
            if torch.is_tensor(first) and first.is_floating_point() and first.shape[:2] == tuple(ids.shape):
                results[f"out:{name}"] = first.detach().numpy().copy()

        module.register_forward_hook(keep)

    for name in names:
        tail = name.removeprefix("model.")
        found = [path for path in modules if path in (name, tail) or path.endswith(f".{tail}")]
        found = [path for path in found if "vision" not in path]
        if len(found) == 1 or name in found:
            watch(name, modules[name if name in found else found[0]])
    with torch.no_grad():
        logits = model(torch.from_numpy(ids), use_cache=False).logits[0].float().numpy()
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    np.savez(answer, logits=logits, versions=np.asarray(versions), **results)


if __name__ == "__main__":
    main()
