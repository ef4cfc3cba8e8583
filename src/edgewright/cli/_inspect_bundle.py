"""What is in a bundle or an exported folder: its manifest, and the dtypes of its weights where onnx is installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edgewright.bundle import Manifest, read_manifest
from edgewright.errors import BundleError, BundleTamperedError
from edgewright.files import inside
from edgewright.runtime.policy.stages import STAGES


def describe_bundle(folder: Path) -> dict[str, Any]:
    """Return the description; raises BundleError. Digests are not compared, `verify` does that."""
    manifest = read_manifest(folder)
    recipe = manifest.recipe
    result: dict[str, Any] = {
        "kind": "bundle" if manifest.target else "exported folder",
        "path": str(folder),
        "source": f"{manifest.source['name']} ({manifest.source['kind']})",
        "model_type": manifest.model["model_type"],
        "parameters": manifest.model["parameters"],
        "bytes": sum(entry["bytes"] for entry in manifest.files.values()),
        **(_policy(manifest) if "policy" in manifest.model else _language_model(manifest)),
        "target": manifest.target,
        "versions": dict(manifest.versions),
        "recipe": {"name": recipe["name"], **recipe["summary"]},
        **calibration(recipe.get("quantized")),
        "stages": {name: manifest.stages[name].to_json() for name in _in_order(manifest.stages)},
        "verdict": dict(manifest.verdict),
        "notes": list(manifest.notes),
        "files": {name: dict(entry) for name, entry in manifest.files.items()},
    }
    return {**result, **_weights(folder, manifest)}


def _in_order(names: Iterable[str]) -> list[str]:
    """Return the names of stages in the order they run in."""
    return sorted(names, key=lambda name: STAGES.index(name) if name in STAGES else 0)


def _language_model(manifest: Manifest) -> dict[str, Any]:
    model = manifest.model
    return {
        "layers": model["layers"],
        "vocab_size": model["vocab_size"],
        **_vocabulary(manifest),
        "max_context": model["max_context"],
    }


def _policy(manifest: Manifest) -> dict[str, Any]:
    """Return what there is to say of a policy: what it takes and gives, and how its graphs were rewritten."""
    model = manifest.model
    return {
        "layers": ", ".join(f"{model['layers'][name]} {name}" for name in _in_order(model["layers"])),
        "policy": dict(model["policy"]),
        "features": dict(model["features"]),
        **({"schedule": dict(model["schedule"])} if "schedule" in model else {}),
    }


def calibration(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what there is to say of the data that a quantized checkpoint was calibrated on."""
    data = (record or {}).get("calibration")
    return {"calibration": dict(data)} if isinstance(data, Mapping) and "sequences" in data else {}


def _vocabulary(manifest: Manifest) -> dict[str, Any]:
    """Return what there is to say of a reduced vocabulary."""
    record = manifest.model.get("vocabulary")
    return {} if record is None else {"kept_tokens": record["kept"], "vocabulary": dict(record)}


def _weights(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return the tensors of all stages and their bytes by dtype; nothing on a device without onnx."""
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        from edgewright.cli._inspect_graph import bytes_by_dtype, tensors_of
    except ModuleNotFoundError:
        return {}
    tensors: list[dict[str, Any]] = []
    for stage in manifest.stages.values():
        graph = inside(folder, stage.graph)
        if not graph.is_file():
            raise BundleError(f"The bundle's file {stage.graph} is missing: copy or build the bundle again.")
        try:
            tensors += tensors_of(onnx.load(graph, load_external_data=False))
        except DecodeError:
            raise BundleTamperedError(
                f"The bundle's file {stage.graph} is no ONNX graph: copy the bundle again."
            ) from None
    return {"bytes_by_dtype": bytes_by_dtype(tensors), "tensors": tensors}
