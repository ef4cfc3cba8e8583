"""Evaluations on a Ray cluster: the same numbers, and sentences for what goes wrong."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgewright.checkpoint import open_checkpoint
from edgewright.errors import HostError, MissingExtraError, UsageError
from edgewright.formats import FloatFormat, IntFormat
from edgewright.models import build_llm
from edgewright.quant.recipe import Algorithm, Recipe
from edgewright.quantizer.candidates import Roundings, parse_formats
from edgewright.quantizer.evaluate import LocalEvaluator
from edgewright.quantizer.plan import plan_of
from edgewright.quantizer.ray_pool import RayEvaluator, Worker, fingerprint_of, ray_cluster
from edgewright.quantizer.search import Budget
from edgewright.quantizer.search_run import Request, search
from edgewright.quantizer.stream import FloatModel

INT4 = IntFormat(4, 32, False)
LLAMA = Path(__file__).parents[1] / "goldens" / "text" / "llama"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of two workers on this machine."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def rows(count: int) -> list[np.ndarray]:
    vocab = build_llm(open_checkpoint(LLAMA), max_context=8).contract.outputs[0].shape[-1]
    rng = np.random.default_rng(4)
    return [rng.integers(0, int(vocab), 20) for _ in range(count)]


@pytest.mark.usefixtures("cluster")
def test_two_workers_give_the_numbers_of_this_machine(tmp_path: Path) -> None:
    """Single changes and a mix, bit for bit; then workers that lack the checkpoint."""
    import ray

    checkpoint = open_checkpoint(Path(shutil.copytree(LLAMA, tmp_path / "checkpoint")))
    held_out = rows(3)
    keep = FloatFormat("float32")
    stage = build_llm(checkpoint, max_context=20)
    targets = plan_of(stage, Recipe("x", keep, keep, keep)).targets
    model = FloatModel(stage, tmp_path / "model", None, 1)
    roundings = Roundings(tmp_path / "rounded", {target.module: Algorithm("mse") for target in targets})
    for target in targets:
        roundings.rounded(target, INT4, model.weight(target.weight), None)
    mixes = [[(target, INT4)] for target in targets[:4]] + [[(target, INT4) for target in targets]]
    here = LocalEvaluator(model, roundings, held_out, tmp_path, stride=2)
    with ray_cluster("local"):
        there = RayEvaluator(checkpoint, model, roundings, held_out, stride=2)
        found = there.evaluate(mixes)
        there.close()
    assert found == here.evaluate(mixes)
    assert len({judgement.kl for judgement in found}) == 5
    assert here.evaluations == there.evaluations == 5
    assert ray.is_initialized(), "a cluster that was there before is left as it is"
    moved = dataclasses.replace(checkpoint, path=tmp_path / "elsewhere")
    with pytest.raises(HostError, match=r"elsewhere is not there on .*: put the checkpoint under this path there\."):
        RayEvaluator(moved, model, roundings, held_out).evaluate(mixes[:1])


@pytest.mark.usefixtures("cluster")
def test_a_search_with_ray_finds_what_one_without_does() -> None:
    request = Request(Budget.parse("size=60kB"), parse_formats("int4,int8"), threads=1)
    given = rows(5)
    here = search(open_checkpoint(LLAMA), given[:3], given[3:], request)
    there = search(open_checkpoint(LLAMA), given[:3], given[3:], dataclasses.replace(request, ray="local"))
    assert here == there


def test_a_worker_refuses_another_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = LLAMA.parent / "qwen3"
    fingerprint = fingerprint_of(open_checkpoint(LLAMA))
    worker = Worker(str(LLAMA), fingerprint, rows(1), 1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert worker.ready() == ""
    assert list(tmp_path.iterdir())
    worker.close()
    assert not list(tmp_path.iterdir())
    assert "is another checkpoint on" in Worker(str(other), fingerprint, rows(1), 1).ready()
    assert Worker(str(tmp_path), fingerprint, rows(1), 1).ready().endswith(".")


@pytest.mark.parametrize("address", ["", "here", "host:", ":6379", "host:port", "host:0", "host:99999"])
def test_what_is_no_address(address: str) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with (
        pytest.raises(UsageError, match="is no address of a cluster: write local, auto or HOST:PORT"),
        ray_cluster(address),
    ):
        pass


def test_a_cluster_that_does_not_answer() -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    sentence = r"The Ray cluster '127.0.0.1:1' can't be reached \(.+\): check that it runs"
    with pytest.raises(HostError, match=sentence), ray_cluster("127.0.0.1:1"):
        pass


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'edgewright\[ray\]'"), ray_cluster("local"):
        pass
