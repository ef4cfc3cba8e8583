"""Two engines in one session: who is asked when, and that nobody can tell from the logits."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import golden, lowered
from edgewright.build.engines import engine_request
from edgewright.build.pipeline import deploy
from edgewright.bundle import read_manifest, write_manifest
from edgewright.contract import StageContract, TensorContract
from edgewright.errors import BundleError
from edgewright.runtime.llm import LLM
from edgewright.runtime.paired import PairedEngine, prefill_stage
from edgewright.runtime.session import Session

CONTRACT = StageContract((TensorContract("input_ids", "int64", ("batch", "seq")),), ())


class Recorder:
    """An engine that notes which widths of calls it was bound for."""

    def __init__(self, contract: StageContract = CONTRACT) -> None:
        self.contract, self.widths = contract, list[int]()

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Callable[[], None]:
        fed = next(iter(inputs.values()))
        self.widths.append(fed.shape[1])
        return lambda: None


@pytest.mark.parametrize("name", ["input_ids", "inputs_embeds"])
def test_the_number_of_tokens_decides(name: str) -> None:
    decode, prefill = Recorder(), Recorder()
    pair = PairedEngine(decode, prefill, 4)
    for width in (1, 3, 4, 512, 2):
        shape = (2, width) if name == "input_ids" else (2, width, 8)
        pair.bind({name: np.zeros(shape)}, {})()
    assert decode.widths == [1, 3, 2]
    assert prefill.widths == [4, 512]
    assert pair.contract == CONTRACT


def test_stages_of_different_contracts_are_no_pair() -> None:
    other = dataclasses.replace(CONTRACT, kv_in_place=True)
    with pytest.raises(BundleError, match="take and give different tensors"):
        PairedEngine(Recorder(), Recorder(other))


class MirrorRecorder(Recorder):
    """A recorder that notes what others write."""

    def __init__(self, contract: StageContract) -> None:
        super().__init__(contract)
        self.told = list[tuple[int, list[int]]]()

    def overwritten(self, cache: Any, lengths: Any) -> None:
        self.told.append((cache.ctypes.data, lengths.tolist()))


def test_an_engine_is_told_what_the_other_one_writes() -> None:
    contract = golden_contract()
    decode, prefill = Recorder(contract), MirrorRecorder(contract)
    session = Session(PairedEngine(decode, prefill, 4), first_capacity=64)
    session.append([1, 2, 3, 4, 5], logits="none")
    assert prefill.told == []
    session.append([1])
    session.truncate(2)
    session.append([1, 2])
    place = session.cache()[0].ctypes.data
    assert prefill.told == [(place, [5]), (place, [2])]
    session.restore([array.copy() for array in session.cache()], [1, 2, 3, 4])
    assert prefill.told[2:] == [(place, [0])]


def golden_contract() -> StageContract:
    """The contract of a stage with caches in place."""
    return lowered(golden("qwen3").checkpoint, "openvino").contract


@pytest.fixture(scope="module")
def paired(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    engines = engine_request("prefill=openvino")
    return deploy(source, tmp_path_factory.mktemp("paired") / "b", recipe="float32", engines=engines, verify=False).path


def test_a_bundle_with_two_engines_gives_the_originals_logits(paired: Path) -> None:
    manifest = read_manifest(paired)
    assert {name: entry.runtime for name, entry in manifest.stages.items()} == {
        "llm": "onnxruntime",
        "prefill": "openvino",
    }
    assert manifest.model["prefill_from"] == 16
    llm, wanted = LLM.load(paired, threads=1), golden("qwen3")
    ids = wanted.ids
    for cuts in ([], [20], [1, 3, 30], [16, 17, 18, 40], [15, 31]):
        session, at = llm.session(), 0
        for stop in (*cuts, len(ids)):
            got = session.append(ids[at:stop], logits="all")
            assert np.abs(got - wanted.logits[at:stop]).max() < 1e-4 * np.abs(wanted.logits).max()
            at = stop
    # Cut back behind a long append, into what the other engine wrote; a copy goes on by itself.
    session = llm.session()
    session.append(ids[:40], logits="none")
    for token in ids[40:44]:
        session.append([token])
    session.truncate(21)
    twin = session.copy()
    for one in (session, twin):
        got = one.append(ids[21:], logits="all")
        assert np.abs(got - wanted.logits[21:]).max() < 1e-4 * np.abs(wanted.logits).max()


def test_a_batch_of_rows_of_different_lengths(paired: Path) -> None:
    llm, ids = LLM.load(paired, threads=1), golden("qwen3").ids
    rows = [ids[:30], ids[5:12], ids[9:27]]
    session = llm.session(3)
    session.append_rows([row[:-2] for row in rows], logits="none")
    session.append(np.stack([row[-2:-1] for row in rows]))
    together = session.append(np.stack([row[-1:] for row in rows]))
    for got, row in zip(together, rows, strict=True):
        alone = Session(llm._engine).append(row)
        assert np.abs(got - alone).max() < 1e-4 * np.abs(alone).max()


@pytest.mark.parametrize("value", [None, 0, True, "16"])
def test_a_pair_needs_the_number_of_tokens(paired: Path, tmp_path: Path, value: Any) -> None:
    folder = Path(shutil.copytree(paired, tmp_path / "b"))
    manifest = read_manifest(folder)
    model = {**manifest.model, "prefill_from": value}
    write_manifest(folder, dataclasses.replace(manifest, model=model))
    with pytest.raises(BundleError, match="which is no such number"):
        LLM.load(folder)
    assert prefill_stage(dataclasses.replace(manifest, stages={"llm": manifest.stages["llm"]})) is None
