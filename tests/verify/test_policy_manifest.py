"""Manifests of policies that were changed and sealed again: each is refused in a sentence before anything is built."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from edgewright.bundle import Manifest, read_manifest
from edgewright.checkpoint.policy import PolicyOptions
from edgewright.errors import BundleError
from edgewright.runtime.policy.spec import Limits
from edgewright.verify.policy_manifest import checked, options_of
from policy_builds import deploy_policy, request_for


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("bundle") / "b"
    limits = Limits(maximum=(1.0,) * 7)
    deploy_policy("pi05_libero", folder, "int8", policy=request_for("pi05_libero", limits=limits, delta_mask=(True,)))
    return read_manifest(folder)


def changed(manifest: Manifest, part: str, change: Callable[[dict[str, Any]], Any]) -> Manifest:
    content = copy.deepcopy(dict(getattr(manifest, part)))
    change(content)
    return dataclasses.replace(manifest, **{part: content})


def test_a_manifest_as_it_was_written(manifest: Manifest) -> None:
    assert checked(manifest) is manifest
    wanted = dataclasses.replace(request_for("pi05_libero").options, tokenizer=None, delta_mask=(True,))
    assert options_of(manifest) == dataclasses.replace(wanted, limits=Limits(maximum=(1.0,) * 7))
    assert options_of(changed(manifest, "model", lambda m: m.pop("options"))) == PolicyOptions()


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("model", lambda m: m.update(options=5), "options are .*no object"),
        ("model", lambda m: m.update(options={"sizes": 5}), "sizes is 5"),
        ("model", lambda m: m.update(options={"statistics": {"a": 1}}), "statistics is"),
        ("model", lambda m: m.update(options={"foo": 1}), "foo is 1"),
        ("model", lambda m: m.update(options={"cameras": [1, 2]}), "cameras is"),
        ("model", lambda m: m.update(options={"delta_mask": 5}), "delta_mask is 5"),
        ("model", lambda m: m.update(options={"steps": "x"}), "steps is x"),
        ("model", lambda m: m.update(options={"steps": True}), "steps is True"),
        ("model", lambda m: m.update(options={"limits": {}}), "limits lacks"),
        ("model", lambda m: m.pop("features"), "lacks 'features'"),
        ("model", lambda m: m.update(features=5), "features"),
        ("model", lambda m: m.update(features={}), "other names"),
        ("model", lambda m: m["features"].update(zz=True), "other names"),
        ("model", lambda m: m["features"].update(loop=["graph"]), "loop is"),
        ("model", lambda m: m["features"].update({"cross-once": True}), "cross-once"),
        ("model", lambda m: m.update(policy={}), "lacks action_dim"),
        ("model", lambda m: m.pop("policy"), "no robot policy"),
        ("model", lambda m: m["schedule"].update(steps=7), "schedule has other times"),
        ("model", lambda m: m.update(embedding=5), "embedding"),
        ("model", lambda m: m.update(embedding={"file": "x"}), "embedding"),
        ("stages", lambda s: s.pop("vision"), "vision, prefix, denoise"),
        ("source", lambda s: s.clear(), "lacks 'files'"),
        ("source", lambda s: s.update(files=[1]), "source"),
        ("source", lambda s: s.update(files={"a": {"bytes": "1", "sha256": ""}}), "no size and digest"),
        ("source", lambda s: s.update(origin={"files": 3}), "source"),
        ("recipe", lambda r: r.pop("modules"), "lacks 'modules'"),
        ("recipe", lambda r: r.update(modules=[]), "no modules"),
        ("recipe", lambda r: r.update(modules=[{"stage": "denoise"}]), "lacks 'module'"),
        ("recipe", lambda r: r["modules"][0].update(stage="llm"), "stage llm"),
        ("recipe", lambda r: r["modules"][0].update(dtype="float3"), "float3"),
        ("recipe", lambda r: r["modules"][0].update(activation=5), "recipe"),
        ("versions", lambda v: v.pop("edgewright"), "lacks 'edgewright'"),
    ],
)
def test_what_is_refused(part: str, change: Callable[[dict[str, Any]], Any], words: str, manifest: Manifest) -> None:
    with pytest.raises(BundleError, match=rf"{words}.*\.$") as caught:
        checked(changed(manifest, part, change))
    assert "build the bundle again" in str(caught.value) or "give one that was made" in str(caught.value)
