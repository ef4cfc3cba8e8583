"""What a policy is calibrated on, against the same loop run apart: all steps, all observations, no masked token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.bundle.settings import EngineSettings
from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.dialects import portable
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models._policy import PolicyBounds, build_policy
from edgewright.quant.apply import quantizable
from edgewright.quant.moments import Moments
from edgewright.quantizer.policy import noise
from edgewright.quantizer.policy_observations import Observations
from edgewright.runtime.policy.observation import Prepared
from edgewright.runtime.policy.schedule import step_size, time_embedding, times
from edgewright.verify.graphs import Graph
from policy_goldens import POLICY_CASES, policy_checkpoint
from quantizer_policy_cases import observations_of, quantized, recipe_named, run

FP8 = (
    "body: {format: fp8}\nlm_head: {format: float32}\nembedding: {format: float32}\n"
    "activations: {format: fp8, mode: static}\n"
)
Seen = dict[str, list[np.ndarray]]


class Apart:
    """The float stages with the inputs of all linears tapped, run on observations padded to the full prefix."""

    def __init__(self, checkpoint: PolicyCheckpoint, folder: Path) -> None:
        self.checkpoint = checkpoint
        self.sessions, self.taps, self.inputs = {}, {}, {}
        for name, stage in build_policy(checkpoint, bounds=PolicyBounds()).items():
            self.taps[name] = {use.module: str(use.node.inputs[0].name) for use in quantizable(stage)}
            self.inputs[name] = [tensor.name for tensor in stage.contract.inputs]
            write_stage(portable.lower(stage), folder / name)
            graph = Graph(folder / name / MODEL_FILE, EngineSettings("all"))
            self.sessions[name] = graph.tapped(self.taps[name].values(), 1)

    def run(self, stage: str, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
        session = self.sessions[stage]
        given = {value.name: feeds[value.name] for value in session.get_inputs()}
        names = [value.name for value in session.get_outputs()]
        return given | dict(zip(names, session.run(names, given), strict=True))

    def frame(self, one: Prepared) -> tuple[dict[str, Any], np.ndarray]:
        """Return the feeds of an observation with every slot and token there may be, and which positions are valid."""
        spec = self.checkpoint.spec
        tokens, slots = spec.image_tokens, len(spec.cameras)
        images = np.full((slots, 3, *spec.image_size), -1, np.float32)
        images[: len(one.images)] = one.images
        ids = np.zeros((1, spec.max_tokens), np.int64)
        ids[0, : len(one.token_ids)] = one.token_ids
        state = int(self.checkpoint.kind == "smolvla")
        mask = np.zeros((1, slots * tokens + spec.max_tokens + state), np.int64)
        mask[0, : len(one.images) * tokens] = 1
        mask[0, slots * tokens : slots * tokens + len(one.token_ids)] = 1
        mask[0, mask.shape[1] - state :] = 1
        feeds = {"images": images, "token_ids": ids, "prefix_mask": mask, "state": one.state[None]}
        return feeds, mask[0].astype(bool)

    def inputs_seen(self, observations: Observations, *, masked: bool = False, steps: Sequence[int] = ()) -> Seen:
        """Return the rows that every linear reads; `masked` tokens as well, and of the loop some steps alone."""
        seen: Seen = {}
        spec = self.checkpoint.spec
        embedded = time_embedding(times(spec.schedule, spec.steps), self.checkpoint.sizes.expert.width)

        def keep(stage: str, values: dict[str, np.ndarray], rows: np.ndarray | None = None) -> None:
            for module, name in self.taps[stage].items():
                if name != "token_ids":
                    by_token = rows is not None and name != "state"
                    found = values[name][:, rows] if by_token else values[name]
                    seen.setdefault(module, []).append(found.reshape(-1, found.shape[-1]))

        for sample, one in enumerate(observations):
            feeds, valid = self.frame(one)
            vision = self.run("vision", feeds)
            keep("vision", vision if masked else {n: v[: len(one.images)] for n, v in vision.items()})
            features = vision["image_features"]
            feeds["image_features"] = features.reshape(1, -1, features.shape[-1])
            prefix = self.run("prefix", feeds)
            keep("prefix", prefix, np.ones_like(valid) if masked else valid)
            x_t = noise(observations.seed, sample, (1, spec.horizon, spec.model_action_dim))
            for step in range(spec.steps):
                values = self.run(
                    "denoise", feeds | prefix | {"x_t": x_t, "time_embedding": embedded[step][None, None]}
                )
                if not steps or step in steps:
                    keep("denoise", values)
                x_t = x_t + step_size(spec.steps) * values["velocity"]
        return seen


def scales_of(checkpoint: PolicyCheckpoint, quantized_policy: PolicyCheckpoint) -> dict[str, float]:
    """Return the largest input that a quantized policy's static scales were made for, by module."""
    found = {}
    for name, tensor in quantized_policy.tensors.items():
        given = getattr(tensor, "input", None)
        if given is not None and given.scale is not None:
            found[name.removesuffix(".weight")] = 448 * float(given.scale[0])
    return found


def ends(seen: Seen, modules: Sequence[str]) -> np.ndarray:
    return np.array([max(np.abs(rows).max() for rows in seen[module]) for module in modules])


@pytest.mark.parametrize("case", POLICY_CASES)
def test_ranges_are_those_of_all_steps_and_of_no_masked_token(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = policy_checkpoint(case)
    observations = observations_of(checkpoint, tmp_path / "data", 3)
    found = scales_of(checkpoint, quantized(tmp_path / "made", checkpoint, FP8, observations))
    apart = Apart(checkpoint, tmp_path / "apart")
    seen = apart.inputs_seen(observations)
    # The expert's projections of the prefix's keys see padding here, which nothing reads; the rest is compared.
    modules = [module for module in found if module in seen and not _across(module)]
    assert len(modules) > 20
    made = np.array([found[module] for module in modules])
    np.testing.assert_allclose(made, ends(seen, modules), rtol=2e-5)
    # The fault that this is to find: the statistics of one step alone.
    denoise = [index for index, module in enumerate(modules) if module in apart.taps["denoise"]]
    first = ends(apart.inputs_seen(observations, steps=(0,)), modules)
    assert np.max(np.abs(first[denoise] / made[denoise] - 1)) > 0.02


@pytest.mark.parametrize("case", ["pi05_libero", "pi0", "smolvla"])
def test_means_are_those_of_valid_tokens(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept: list[Moments] = []

    class Kept(Moments):
        def __post_init__(self) -> None:
            super().__post_init__()
            kept.append(self)

    monkeypatch.setattr("edgewright.quantizer.driver.Moments", Kept)
    checkpoint = policy_checkpoint(case)
    observations = observations_of(checkpoint, tmp_path / "data", 2)
    run(checkpoint, FP8, observations).work.remove()
    apart = Apart(checkpoint, tmp_path / "apart")
    moments = {module: one for one in kept for module in one.name.split(", ")}

    def differ(seen: Seen) -> tuple[set[str], float]:
        rows = {m: np.concatenate(seen[m]) for m in moments.keys() & seen.keys() if not _across(m)}
        counts = {module for module, found in rows.items() if len(found) != moments[module].tokens}
        means = [np.abs(found.mean(axis=0) - moments[module].mean).max() / np.abs(found).max()
                 for module, found in rows.items()]  # fmt: skip
        assert len(rows) > 30
        return counts, max(means)

    counts, worst = differ(apart.inputs_seen(observations))
    assert not counts
    assert worst < 1e-5
    # The fault that this is to find: masked tokens counted.
    counts, worst = differ(apart.inputs_seen(observations, masked=True))
    assert {module.rsplit(".", 1)[-1] for module in counts} >= {"q_proj", "o_proj", "gate_proj", "down_proj"}
    assert worst > 0.01


def _across(module: str) -> bool:
    layer = int(module.split(".layers.")[1].split(".")[0]) if ".layers." in module else 0
    return "lm_expert" in module and layer % 2 == 1 and module.endswith(("k_proj", "v_proj"))


@pytest.mark.parametrize("case", ["pi05", "smolvla"])
def test_the_report_has_the_ranges_of_every_step(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = policy_checkpoint(case)
    observations = observations_of(checkpoint, tmp_path / "data", 2)
    done = run(checkpoint, FP8, observations)
    ranges = done.ranges
    done.work.remove()
    apart = Apart(checkpoint, tmp_path / "apart")
    assert set(ranges) == set(apart.taps["denoise"])
    for step in (0, checkpoint.spec.steps - 1):
        seen = apart.inputs_seen(observations, steps=(step,))
        for module, found in ranges.items():
            assert len(found) == checkpoint.spec.steps
            if not _across(module):
                wanted = [min(r.min() for r in seen[module]), max(r.max() for r in seen[module])]
                np.testing.assert_allclose(found[step], wanted, rtol=1e-4, atol=1e-5)


def test_the_loop_begins_with_noise_of_its_own_for_every_observation() -> None:
    drawn = [noise(seed, sample, (1, 6, 32)) for seed in (0, 1) for sample in range(3)]
    assert len({array.tobytes() for array in drawn}) == len(drawn)
    np.testing.assert_array_equal(drawn[0], noise(0, 0, (1, 6, 32)))
    assert abs(np.mean(drawn)) < 0.1
    assert abs(np.std(drawn) - 1) < 0.1


def test_recipes_that_look_at_nothing_need_no_observations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = policy_checkpoint("pi0_lerobot")
    recipe = "body: {format: int4, algorithm: mse}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
    assert not recipe_named(recipe).needs_data
    made = quantized(tmp_path / "made", checkpoint, recipe, None)
    assert made.quantization is not None
