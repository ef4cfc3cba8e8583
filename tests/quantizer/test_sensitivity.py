"""The second-order estimate against the KL of one change at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgewright.checkpoint import open_checkpoint
from edgewright.formats import BlockFormat, FloatFormat, Format, IntFormat, MxFormat
from edgewright.models import build_llm
from edgewright.quant.algorithms import solve
from edgewright.quant.recipe import Algorithm, Recipe
from edgewright.quantizer.candidates import Roundings
from edgewright.quantizer.judge import Judge
from edgewright.quantizer.plan import Plan, plan_of
from edgewright.quantizer.search_check import spearman
from edgewright.quantizer.sensitivity import Sensitivities, sensitivities
from edgewright.quantizer.stream import FloatModel, Spool

GOLDENS = Path(__file__).parents[1] / "goldens" / "text"
KEEP = FloatFormat("float32")


class Case:
    """A golden, its plan, and its estimate for some formats, coarsest first."""

    def __init__(self, name: str, folder: Path, formats: tuple[Format, ...], algorithm: str, seed: int = 0) -> None:
        stage = build_llm(open_checkpoint(GOLDENS / name), max_context=40)
        vocab = stage.contract.outputs[0].shape[-1]
        rng = np.random.default_rng(seed)
        self.rows = [rng.integers(0, int(vocab), 40 - i) for i in range(6)]
        self.plan: Plan = plan_of(stage, Recipe("x", KEEP, KEEP, KEEP))
        self.model = FloatModel(stage, folder / "model", None, 1)
        modules = [t.module for t in self.plan.targets]
        self.roundings = Roundings(folder / "rounded", dict.fromkeys(modules, Algorithm(algorithm)))
        self.before = {t.weight: self.model.weight(t.weight) for t in self.plan.targets}
        probes = [row[:30] for row in self.rows[:4]]
        self.probed = sum(map(len, probes))
        self.known: Sensitivities = sensitivities(
            self.model, self.plan, self.rows, probes, dict.fromkeys(modules, formats), self.roundings,
            Spool(folder / "spool"),
        )  # fmt: skip


FORMATS = (IntFormat(4, 32, False), IntFormat(8, 32, False))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A llama rounded to nearest; not to be changed."""
    return Case("llama", tmp_path_factory.mktemp("plain"), FORMATS, "mse")


@pytest.mark.parametrize("algorithm", ["mse", "gptq"])
def test_it_ranks_and_sizes_single_changes(tmp_path: Path, plain: Case, algorithm: str) -> None:
    formats = FORMATS
    case = plain if algorithm == "mse" else Case("llama", tmp_path, formats, algorithm, 3)
    judge = Judge(case.model, case.rows, tmp_path)
    estimated, measured = [], []
    for target in case.plan.targets:
        for fmt in formats:
            rounded = case.roundings.load(target, fmt, case.before[target.weight])
            found = judge.judge({target.weight: rounded})
            estimated.append(case.known.kl[target.module, fmt])
            measured.append(found.kl)
    assert len(estimated) == len(case.known.kl) == 2 * len(case.plan.targets)
    coarse = slice(0, None, 2)
    assert spearman(estimated, measured) > 0.9
    assert np.corrcoef(np.log(estimated[coarse]), np.log(measured[coarse]))[0, 1] > 0.9
    assert 1 / 3 < sum(estimated) / sum(measured) < 3


def test_finer_is_better_and_weights_are_put_back(tmp_path: Path) -> None:
    formats = (MxFormat("e2m1"), IntFormat(8, 32, False), FloatFormat("float16"), KEEP)
    case = Case("qwen3_moe", tmp_path, formats, "mse")
    for name, before in case.before.items():
        np.testing.assert_array_equal(case.model.weight(name), before)
    for target in case.plan.targets:
        kl = [case.known.kl[target.module, fmt] for fmt in formats]
        assert kl[0] > kl[1] > kl[2] - 1e-12, target.module
        assert kl[3] == pytest.approx(0, abs=1e-7)
    assert not list((tmp_path / "spool").glob("*")) or sum(p.stat().st_size for p in (tmp_path / "spool").iterdir()) > 0


def test_roundings_are_those_of_the_algorithm(tmp_path: Path) -> None:
    """Made once by the algorithm of the module, and read back bit for bit."""
    fmt = IntFormat(4, 32, False, scales="float16")
    case = Case("llama", tmp_path, (fmt,), "mse")
    for target in case.plan.targets:
        weight = case.before[target.weight]
        parts = solve(weight, fmt, Algorithm("mse"), None, target.module)
        assert isinstance(fmt, BlockFormat)
        wanted = fmt.decode(parts, weight.shape[1])
        np.testing.assert_array_equal(case.roundings.load(target, fmt, weight), wanted)


def test_work_is_counted_in_tokens_times_segments(plain: Case) -> None:
    """Two formats, L layers of m modules: a clean pass, every module and format, and the streams of earlier layers."""
    case = plain
    layers = len(case.plan.segments) - 2
    modules = [sum(len(group.targets) for group in groups) for groups in case.plan.groups]
    clean = layers + 2
    energies = sum(2 * count + 1 for count in modules[:-1] if count)
    streams = sum(range(1, layers + 1)) + layers + 1  # through layers, and through the head
    heads = 2 * modules[-1]
    assert case.known.work == case.probed * (clean + energies + streams + heads)
    assert case.known.statistics == sum(map(len, case.rows)) * (layers + 2)


@pytest.mark.parametrize("name", ["gemma4", "lfm2", "gpt2"])
def test_values_that_skip_layers_reach_every_stream(tmp_path: Path, name: str) -> None:
    """Tables a layer, shared caches, tables of positions: noise that starts late meets clean values from before."""
    case = Case(name, tmp_path, (IntFormat(4, 32, False),), "mse")
    assert {module for module, _ in case.known.kl} == {t.module for t in case.plan.targets}
    assert all(np.isfinite(kl) and kl > -1e-6 for kl in case.known.kl.values())
