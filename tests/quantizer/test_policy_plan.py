"""The plan of a policy: where factors fold in its three stages, what kinds its modules are, and the verbs around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewright.cli import main
from edgewright.quantizer.plan import Group
from edgewright.quantizer.policy import Stages, plan_policy
from policy_goldens import POLICY_CASES, POLICY_GOLDENS, TOKENIZER, policy_checkpoint
from quantizer_policy_cases import recipe_named, write_observations

INT4 = "body: {format: int4}\nlm_head: {format: int8}\nembedding: {format: int8}\n"


def planned(case: str) -> Stages:
    return plan_policy(policy_checkpoint(case), recipe_named(INT4))


def group_of(plan: Stages, stage: str, module: str) -> Group:
    found = [g for groups in plan.plans[stage].groups for g in groups if any(module in t.module for t in g.targets)]
    return found[0]


@pytest.mark.parametrize("case", POLICY_CASES)
def test_every_module_is_planned_once_and_segments_are_layers(case: str) -> None:
    plan = planned(case)
    modules = [target.module for one in plan.plans.values() for target in one.targets]
    assert len(modules) == len(set(modules))
    sizes = policy_checkpoint(case).sizes
    layers = {"vision": sizes.vision.layers, "prefix": sizes.text.layers, "denoise": sizes.expert.layers}
    for name, one in plan.plans.items():
        titles = [segment.title for segment in one.segments]
        assert titles == ["embedding", *(f"layer {i}" for i in range(layers[name])), "head"]
        given: set[str] = set()
        for segment in one.segments:
            assert set(segment.fed) <= given
            given |= set(segment.gives)
    # Whatever the next stage reads is given by some segment.
    assert any("image_features" in segment.gives for segment in plan.plans["vision"].segments)
    kept = {name for segment in plan.plans["prefix"].segments for name in segment.gives if name.startswith("prefix_")}
    assert len(kept) == 2 * sizes.text.layers


def test_factors_fold_where_the_float_policy_stays_the_same() -> None:
    plan = planned("pi05")
    out = group_of(plan, "vision", "layers.0.self_attn.out_proj").fold
    assert out is not None
    assert [name.rsplit(".", 2)[-2] for name in out.rows] == ["v_proj"]
    assert [name.rsplit(".", 2)[-2] for name in out.vectors] == ["v_proj"]  # its bias
    norm = group_of(plan, "vision", "layers.0.self_attn.q_proj").fold
    assert norm is not None
    assert len(norm.vectors) == 2
    rows = group_of(plan, "prefix", "layers.0.mlp.down_proj").fold
    assert rows is not None
    assert rows.rows[0].endswith("up_proj.weight")
    # Values come from the prefix as well; a norm that the time modulates has no weight to fold into.
    for module in ("layers.0.self_attn.o_proj", "layers.0.self_attn.q_proj"):
        assert group_of(plan, "denoise", module).fold is None
    assert group_of(planned("pi0"), "denoise", "layers.0.self_attn.q_proj").fold is not None


def test_kinds() -> None:
    for case, names in {
        "pi05": {"patch_embedding", "linear", "dense", "time_mlp_in", "time_mlp_out", "action_in_proj",
                 "action_out_proj"},
        "pi0": {"patch_embedding", "linear", "state_proj", "actions", "time", "action_time_mlp_out", "action_in_proj",
                "action_out_proj"},
        "smolvla": {"patch_embedding", "state_proj", "actions", "time", "action_time_mlp_out", "action_in_proj",
                    "action_out_proj"},
    }.items():  # fmt: skip
        targets = [target for one in planned(case).plans.values() for target in one.targets]
        assert {t.module.rsplit(".", 1)[-1] for t in targets if t.kind == "projection"} == names
        assert [t.module.rsplit(".", 1)[-1] for t in targets if t.kind == "embedding"] == ["embed_tokens"]
        floats = {t.choice.weight.label for t in targets if t.kind == "projection"}
        assert floats == {"float32"}


def test_the_verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = str(POLICY_GOLDENS / "pi0_lerobot" / "checkpoint")
    data = write_observations(tmp_path / "data", policy_checkpoint("pi0_lerobot"))
    flags = ["--tokenizer", str(TOKENIZER)]
    assert main(["quantize", source, *flags, "--recipe", "policy-int4", "--dry-run", "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert list(stages) == ["vision", "prefix", "denoise"]
    assert main(["quantize", source, *flags, "--recipe", "policy-int4", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.endswith(":")] == ["vision:", "prefix:", "denoise:"]
    made, shards = tmp_path / "made", tmp_path / "shards"
    assert (
        main(["calibrate", source, *flags, "--data", str(data), "--sequences", "3", "-o", str(shards), "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["samples"] == 3
    for place in (data, shards):
        assert main(["quantize", source, *flags, "--recipe", "policy-int4", "--data", str(place), "-o", str(made),
                     "--force", "--json"]) == 0  # fmt: skip
        done = json.loads(capsys.readouterr().out)
        assert done["calibration"]["samples"] == (5 if place is data else 3)
        assert len(done["modules"]) == sum(len(stage["modules"]) for stage in stages.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quantize", "pi05", "--recipe", "pi05-fp8", "-o", "x"], "is calibrated on observations"),
        (["quantize", "pi05", "--recipe", "pi05-fp8", "--length", "9", "-o", "x"], "--length has no meaning"),
        (["quantize", "pi05", "--recipe", "policy-int8", "--feature", "loop=graph", "--dry-run"], "--feature has no"),
        (["quantize", "pi05", "--recipe", "policy-int8", "--seed", "3", "-o", "x"], "looks at no data"),
        (["quantize", "llama", "--recipe", "int8", "--horizon", "4", "--dry-run"], "is not a robot policy"),
        (["quantize", "llama", "--recipe", "pi05-fp8", "--dry-run"], "the model has no stage 'vision'; it has llm"),
        (["calibrate", "pi05", "-o", "x"], "is calibrated on observations"),
        (["calibrate", "pi05", "--length", "9", "-o", "x"], "--length has no meaning"),
    ],
)
def test_what_the_verbs_refuse(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb, name, *rest = arguments
    folder = POLICY_GOLDENS / name / "checkpoint" if name == "pi05" else POLICY_GOLDENS.parent / "text" / name
    assert main([verb, str(folder), *rest]) in (2, 3)
    assert message in capsys.readouterr().err
