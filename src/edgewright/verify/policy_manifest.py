"""What verification reads of a policy's manifest, checked before anything is built from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edgewright.bundle.manifest import Manifest
from edgewright.checkpoint.policy import PolicyOptions
from edgewright.errors import BundleError, RecipeError, UsageError
from edgewright.formats import ActivationFormat, format_from_json
from edgewright.graph.features import FEATURES, resolve_features
from edgewright.quant.kv import cache_of_record
from edgewright.runtime.embedding import embedding_width
from edgewright.runtime.policy.policy import policy_spec
from edgewright.runtime.policy.schedule import FixedSchedule
from edgewright.runtime.policy.spec import Limits
from edgewright.runtime.policy.stages import STAGES


def checked(manifest: Manifest) -> Manifest:
    """Return a manifest that describes a policy's bundle as `deploy` does; raises BundleError on any other."""
    spec = policy_spec(manifest)
    if set(manifest.stages) != set(STAGES):
        raise _wrong("stages", f"not {', '.join(STAGES)}")
    for name, check in _CHECKS.items():
        try:
            check(manifest)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, UsageError, RecipeError) as error:
            words = f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise _wrong(name, words) from None
    if manifest.model["features"] != resolve_features(manifest.model["features"], spec.kind):
        raise _wrong("features", "not those of its kind of policy")
    return manifest


def options_of(manifest: Manifest) -> PolicyOptions:
    """Return the options that a build was given, without files; raises BundleError on wrong ones."""
    said = manifest.model.get("options", {})
    if not isinstance(said, Mapping):
        raise _wrong("options", "no object")
    values: dict[str, Any] = {}
    for name, value in said.items():
        if name not in _OPTIONS or not _OPTIONS[name](value):
            raise _wrong("options", f"{str(name)[:40]} is {str(value)[:40]}")
        values[name] = tuple(value) if isinstance(value, list) else value
    if "limits" in values:
        values["limits"] = Limits.from_json(values["limits"])
    return PolicyOptions(**values)


def _wrong(where: str, what: str) -> BundleError:
    return BundleError(f"The manifest's {where} are not those of a policy ({what[:120]}): build the bundle again.")


def _features(manifest: Manifest) -> None:
    features = manifest.model["features"]
    if set(features) != set(FEATURES):
        raise ValueError("other names than this version has")
    for name, value in features.items():
        if type(value) not in (bool, str):
            raise ValueError(f"{name} is {value!r}")
    resolve_features(features, policy_spec(manifest).kind)


def _source(manifest: Manifest) -> None:
    source = manifest.source
    _files(source["files"])
    if source.get("origin") is not None:
        _files(source["origin"]["files"])
        if not isinstance(source["kept"], str):
            raise ValueError("kept is no text")


def _files(files: Any) -> None:
    for name, entry in files.items():
        if type(entry["bytes"]) is not int or not isinstance(entry["sha256"], str):
            raise ValueError(f"{name} has no size and digest")


def _modules(manifest: Manifest) -> None:
    if not isinstance(manifest.recipe["name"], str) or not manifest.recipe["modules"]:
        raise ValueError("no name, or no modules")
    for module in manifest.recipe["modules"]:
        if module["stage"] not in STAGES or not isinstance(module["module"], str):
            raise ValueError(f"a module of the stage {module['stage']}")
        format_from_json(module)
        if module.get("activation") is not None:
            ActivationFormat(**module["activation"])


def _cache(manifest: Manifest) -> None:
    """Refuse a record of the prefix KV that can't be read, or that is not about what the stages hand over."""
    record = manifest.recipe.get("kv")
    dtype = "float32" if record is None else cache_of_record(record)[0].cache_dtype
    for name in ("prefix", "denoise"):
        if manifest.stages[name].contract.kv_dtype != dtype:
            raise ValueError(f"they are {dtype} where the stage {name} has {manifest.stages[name].contract.kv_dtype}")


def _versions(manifest: Manifest) -> None:
    if not all(isinstance(value, str) for value in [manifest.versions["edgewright"], *manifest.versions.values()]):
        raise ValueError("one is no text")


def _schedule(manifest: Manifest) -> None:
    if (schedule := manifest.model.get("schedule")) is not None:
        FixedSchedule.from_json(schedule)


def _embedding(manifest: Manifest) -> None:
    record, width = manifest.model.get("embedding"), embedding_width(manifest.stages["prefix"].contract)
    if (record is None) != (width is None) or not isinstance(record, Mapping | None):
        raise ValueError("manifest and engine differ over where it is")


_CHECKS: Mapping[str, Callable[[Manifest], object]] = {
    "features": _features,
    "source's files": _source,
    "recipe's modules": _modules,
    "prefix KV's scales": _cache,
    "versions": _versions,
    "schedule's times": _schedule,
    "embedding's numbers": _embedding,
    "options": options_of,
}


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _all(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(entry) is kind for entry in value)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, dict) and all(type(entry) in (int, float) for entry in value.values())


#: Every option that a manifest may have, and whether a value is one of it; files are not recorded.
_OPTIONS: Mapping[str, Callable[[Any], bool]] = {
    "kind": _is(str),
    "discrete_state": _is(bool),
    **dict.fromkeys(("horizon", "steps", "max_tokens", "state_dim", "action_dim"), _is(int)),
    "statistics": _is(str),
    "cameras": _all(str),
    "required_cameras": _all(str),
    "delta_mask": _all(bool),
    "limits": _is(dict),
    "sizes": _are_sizes,
}
