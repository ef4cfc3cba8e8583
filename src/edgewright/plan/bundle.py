"""A bundle to be planned: the graphs and files that it ships."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from edgewright.bundle import read_manifest
from edgewright.bundle.manifest import Manifest, StageEntry
from edgewright.contract import StageContract
from edgewright.errors import BundleError
from edgewright.files import inside
from edgewright.formats import format_from_json
from edgewright.plan.lowered import LoweredStage
from edgewright.plan.memory import Activations
from edgewright.plan.model import AS_ASKED, Model, Variant
from edgewright.plan.source import PREFILL_CHUNK
from edgewright.plan.work import Call, Work
from edgewright.runtime.policy.spec import PolicySpec
from edgewright.targets.platform import Platform
from edgewright.targets.support import check_stored, family_of

#: Bytes of a number in a cache of codes, and of one in float32, which all graphs of bundles compute in.
_CODE, FLOAT = 1, 4
_CACHES = {"float32": 4, "float16": 2, "bfloat16": 2}


def cache_width(contract: StageContract) -> int:
    """Return the bytes of a number in a stage's caches."""
    return _CACHES.get(contract.kv_dtype, _CODE)


class Bundle(Model):
    """The stages of a bundle as they are; raises BundleError, and RecipeError for a format that the platform lacks."""

    def __init__(self, path: str | Path, platform: Platform) -> None:
        self.path = Path(path)
        manifest = read_manifest(self.path)
        _check_formats(manifest, platform)
        self.kind, self.recipe = str(manifest.model["model_type"]), str(manifest.recipe["name"])
        policy = manifest.model.get("policy")
        self.spec = None if policy is None else PolicySpec.from_json(policy)
        self.contracts = {name: entry.contract for name, entry in manifest.stages.items()}
        if missing := [name for name in (("llm",) if policy is None else _STAGES) if name not in self.contracts]:
            raise BundleError(f"{self.path.name} lacks the stages {', '.join(missing)}: build it again.")
        if policy is None and "capacity" not in self.contracts["llm"].bounds:
            raise BundleError(f"{self.path.name} doesn't say how many tokens it takes: build it again.")
        self._stages = {name: self._stage(name, entry) for name, entry in manifest.stages.items()}
        cached = self.contracts["llm" if policy is None else "prefix"]
        self.float_bytes = FLOAT
        self.cache_width = cache_width(cached)
        self.cut = PREFILL_CHUNK
        self._weights = _weight_bytes(manifest)

    def _stage(self, name: str, entry: StageEntry) -> LoweredStage:
        path = inside(self.path, entry.graph)
        try:
            model = ir.load(path)
        except Exception as error:
            raise BundleError(
                f"The graph of the stage {name} can't be read ({type(error).__name__}): build it again."
            ) from None
        return LoweredStage(name, model, entry.contract, entry.dialect)

    def count(self, stage: str, call: Call) -> Sequence[Work]:
        """Return the work of a run of the graph as it is shipped."""
        return self._stages[stage].count(call)

    def activations(self, stage: str, call: Call) -> Activations:
        """Return what is there at every node of the graph as it is shipped."""
        return self._stages[stage].activations(call)

    def weights(self, variant: Variant = AS_ASKED) -> int:
        """Return the bytes of the stages' weight files."""
        return self._weights


_STAGES = ("vision", "prefix", "denoise")


def _weight_bytes(manifest: Manifest) -> int:
    """Return the bytes of what the stages map; a table outside the graph is looked up in its file."""
    files: Mapping[str, Mapping[str, int]] = manifest.files
    return sum(entry["bytes"] for name, entry in files.items() if name.startswith("stages/") and name.endswith(".bin"))


def _check_formats(manifest: Manifest, platform: Platform) -> None:
    for module in manifest.recipe["modules"]:
        try:
            family = family_of(format_from_json(module))
        except (KeyError, TypeError, ValueError):
            raise BundleError(
                f"The manifest's format of {module.get('module')} can't be read: build it again."
            ) from None
        check_stored(platform, module["module"], "weights", family)
        if (activation := module.get("activation")) is not None:
            check_stored(platform, module["module"], "activations", activation["name"])
    if (cache := manifest.recipe.get("kv")) is not None:
        check_stored(platform, "the key/value cache", "caches", "int8" if cache["dtype"] == "int8" else "fp8")
