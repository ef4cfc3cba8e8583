"""Import the original policies: lerobot (with the copy of openpi's PyTorch model in its tests) and openpi's transforms.

Both are read from checkouts, unchanged on disk. lerobot asks for Python 3.12; the four places where its syntax needs it
are rewritten while they are imported. openpi's transforms, tokenizer and statistics are NumPy code in files that import
JAX, Flax and Orbax; those modules are replaced by placeholders, and `flax.traverse_util` by the two functions in use.
"""

import importlib
import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

PLACEHOLDERS = ("torchvision", "jax", "orbax", "flax", "openpi.shared.array_typing", "openpi.models.model")
PLACEHOLDERS += ("openpi.shared.download", "openpi.models.utils.fsq_tokenizer")
MODULES = {
    "openpi_tokenizer": "openpi.models.tokenizer",
    "libero": "openpi.policies.libero_policy",
    "normalize": "openpi.shared.normalize",
    "transforms": "openpi.transforms",
    "configs": "lerobot.configs",
    "pi_gemma": "lerobot.policies.pi_gemma",
    "modeling_pi0": "lerobot.policies.pi0.modeling_pi0",
    "modeling_pi05": "lerobot.policies.pi05.modeling_pi05",
    "processor_pi0": "lerobot.policies.pi0.processor_pi0",
    "processor_pi05": "lerobot.policies.pi05.processor_pi05",
    "rtc": "lerobot.policies.rtc.configuration_rtc",
    "tokenizer_processor": "lerobot.processor.tokenizer_processor",
    "gemma": "tests.policies.pi0_pi05.openpi_pytorch.gemma",
    "gemma_pytorch": "tests.policies.pi0_pi05.openpi_pytorch.gemma_pytorch",
    "pi0_pytorch": "tests.policies.pi0_pi05.openpi_pytorch.pi0_pytorch",
    "preprocessing_pytorch": "tests.policies.pi0_pi05.openpi_pytorch.preprocessing_pytorch",
}
OLD_SYNTAX = (
    (r"^class (\w+)\[TInput, TOutput\]\((\w+)\):", r"class \1(\2, __import__('typing').Generic[TInput, TOutput]):"),
    (r"^def (\w+)\[T: \w+\]\((.*)\) -> T:", r"T = object\ndef \1(\2):"),
    (r"^type (\w+) =", r"\1 ="),
    (r"^JsonLike = .*$", "JsonLike = object"),
)


class _OlderSource(importlib.machinery.SourceFileLoader):
    """Loads a file of lerobot as Python 3.11 can read it."""

    def source_to_code(self, data: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        text = data.decode()
        for pattern, new in OLD_SYNTAX:
            text = re.sub(pattern, new, text, flags=re.MULTILINE)
        return super().source_to_code(text.encode(), path, *args, **kwargs)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds placeholders for what is not installed, and lerobot's files with `_OlderSource`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == top or name.startswith(top + ".") for top in PLACEHOLDERS):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if name.startswith("lerobot") and spec is not None and spec.origin and spec.origin.endswith(".py"):
            spec.loader = _OlderSource(name, spec.origin)
        return spec

    def create_module(self, spec: Any) -> Any:
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Placeholders have nothing to run."""


def flatten_dict(tree: dict[str, Any], sep: str = "/") -> dict[str, Any]:
    """Return the leaves of nested dictionaries under their joined keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inner = {f"{key}{sep}{k}": v for k, v in flatten_dict(value, sep).items()} if isinstance(value, dict) else {}
        flat |= inner or {key: value}
    return flat


def unflatten_dict(flat: dict[str, Any], sep: str = "/") -> dict[str, Any]:
    """Return the nested dictionaries of joined keys."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(sep)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def import_sources(lerobot: Path, openpi: Path, find_tokenizer: Callable[[], Path]) -> SimpleNamespace:
    """Return the modules of both projects; `find_tokenizer` gives the SentencePiece file when openpi asks for it."""
    sys.dont_write_bytecode = True
    import transformers.models.auto.tokenization_auto
    import transformers.models.paligemma.modeling_paligemma  # noqa: F401  transformers must look for torchvision first

    sys.meta_path.insert(0, _Finder())
    sys.path[:0] = [str(lerobot / "src"), str(lerobot), str(openpi / "src")]
    sys.path.insert(0, str(openpi / "packages" / "openpi-client" / "src"))
    import flax.traverse_util
    import openpi.models.model as openpi_model
    import openpi.shared.download as download

    flax.traverse_util.flatten_dict, flax.traverse_util.unflatten_dict = flatten_dict, unflatten_dict
    download.maybe_download = lambda *_, **__: find_tokenizer()
    openpi_model.ModelType.PI0_FAST = "pi0-fast"

    return SimpleNamespace(**{name: importlib.import_module(path) for name, path in MODULES.items()})
