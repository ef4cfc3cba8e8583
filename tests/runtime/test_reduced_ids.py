"""A reduced vocabulary at the edge of the runtime: ids both ways, the sidecar, sampling in kept tokens."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from edgewright.errors import BundleError, GenerationError
from edgewright.runtime.sampling import Sampler, SamplingParams
from edgewright.runtime.vocabulary import SIDECAR, Vocabulary, read_sidecar, sidecar_bytes

KEPT = st.sets(st.integers(0, 299), min_size=1, max_size=300).map(lambda ids: np.array(sorted(ids), dtype=np.int64))


@given(KEPT)
def test_ids_and_columns_are_inverse(kept: np.ndarray) -> None:
    vocabulary = Vocabulary(kept, 300)
    assert len(vocabulary) == len(kept)
    np.testing.assert_array_equal(vocabulary.columns(vocabulary.ids), np.arange(len(kept)))
    np.testing.assert_array_equal(vocabulary.ids[vocabulary.columns(kept[::-1])], kept[::-1])
    inside = [i for i in range(-2, 303) if i in vocabulary]
    assert inside == kept.tolist()
    for dropped in set(range(300)) - set(kept.tolist()):
        with pytest.raises(GenerationError, match=rf"The token id {dropped} is not among the {len(kept)} of 300"):
            vocabulary.columns(np.array([int(kept[0]), dropped]))


@given(KEPT)
def test_the_sidecar_is_a_safetensors_file(kept: np.ndarray) -> None:
    raw = sidecar_bytes(kept)
    size = struct.unpack("<Q", raw[:8])[0]
    assert (8 + size) % 8 == 0
    header = json.loads(raw[8 : 8 + size])
    assert header == {"kept_ids": {"dtype": "I32", "shape": [len(kept)], "data_offsets": [0, 4 * len(kept)]}}


def test_the_sidecar_is_read_back_and_by_safetensors(tmp_path: Path) -> None:
    kept = np.array([0, 3, 70_000, 262_143], dtype=np.int64)
    (tmp_path / SIDECAR).write_bytes(sidecar_bytes(kept))
    np.testing.assert_array_equal(read_sidecar(tmp_path / SIDECAR, 262_144).ids, kept)
    np.testing.assert_array_equal(load_file(tmp_path / SIDECAR)["kept_ids"], kept.astype(np.int32))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0,)])
def test_columns_have_the_shape_of_the_ids(shape: tuple[int, ...]) -> None:
    vocabulary = Vocabulary(np.array([2, 5, 9]), 10)
    ids = np.full(shape, 5, dtype=np.int64)
    np.testing.assert_array_equal(vocabulary.columns(ids), np.ones(shape))


@pytest.mark.parametrize("odd", [-1, 10, 2**40])
def test_ids_outside_the_full_vocabulary_are_named(odd: int) -> None:
    with pytest.raises(GenerationError, match=f"Token id {odd} is outside the vocabulary of 10"):
        Vocabulary(np.array([2, 5]), 10).columns(np.array([2, odd]))
    assert odd not in Vocabulary(np.array([2, 5]), 10)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "is empty"),
        ([1, 1, 2], "has the id 1 twice"),
        ([1, 3, 2], "is not in ascending order"),
        ([-1, 3], "has the id -1, outside 0 to 9"),
        ([3, 10], "has the id 10, outside 0 to 9"),
    ],
)
def test_wrong_ids_are_refused(ids: list[int], words: str, tmp_path: Path) -> None:
    (tmp_path / SIDECAR).write_bytes(sidecar_bytes(np.array(ids, dtype=np.int64)))
    with pytest.raises(BundleError, match=f"reduced vocabulary {words}: deploy the checkpoint again"):
        read_sidecar(tmp_path / SIDECAR, 10)


def with_header(**changes: object) -> Callable[[bytes], bytes]:
    def change(raw: bytes) -> bytes:
        size = struct.unpack("<Q", raw[:8])[0]
        entry = json.loads(raw[8 : 8 + size])["kept_ids"] | changes
        header = json.dumps({"kept_ids": entry}).encode()
        return struct.pack("<Q", len(header)) + header + raw[8 + size :]

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: b"",
        lambda raw: raw[:7],
        lambda raw: raw[:20],
        lambda raw: raw[:-1],
        lambda raw: raw + b"\0",
        lambda raw: b"\xff" * 8 + raw[8:],
        lambda raw: raw[:8] + b"[" * 5000,
        lambda raw: raw.replace(b"kept_ids", b"lost_ids"),
        with_header(dtype="I64"),
        with_header(shape=[2, 2]),
        with_header(shape=[5]),
        with_header(shape=["4"]),
        with_header(shape=None),
        with_header(data_offsets=[0, 12]),
    ],
)
def test_damaged_sidecars_are_refused(spoil: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / SIDECAR
    path.write_bytes(spoil(sidecar_bytes(np.array([1, 4, 5, 8]))))
    with pytest.raises(BundleError, match=f"{SIDECAR} is damaged: copy the bundle again"):
        read_sidecar(path, 10)


def test_a_missing_sidecar_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=rf"{SIDECAR} can't be read \(No such file"):
        read_sidecar(tmp_path / SIDECAR, 10)


# -- sampling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(repetition_penalty=1.7),
        SamplingParams(temperature=0.8, seed=3),
        SamplingParams(temperature=1.3, top_k=9, top_p=0.8, min_p=0.02, seed=4, repetition_penalty=1.4),
        SamplingParams(temperature=1.0, seed=5, presence_penalty=0.7, frequency_penalty=0.4),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_sampling_kept_columns_is_sampling_with_the_others_out(params: SamplingParams, seed: int) -> None:
    """The same tokens are drawn as from full logits in which dropped tokens can't win."""
    rng = np.random.default_rng(seed)
    kept = np.sort(rng.choice(200, 60, replace=False))
    dropped = np.setdiff1d(np.arange(200), kept)
    prompt = [int(i) for i in (*rng.choice(kept, 9), dropped[0])]
    whole, cut = Sampler(params, prompt), Sampler(params, prompt, token_ids=kept)
    for _ in range(40):
        logits = rng.normal(0, 3, 200).astype(np.float32)
        logits[dropped] = -1e30
        ids, probabilities = cut.distribution(logits[kept])
        all_ids, all_probabilities = whole.distribution(logits)
        alive = all_probabilities > 0
        np.testing.assert_array_equal(ids[probabilities > 0], all_ids[alive])
        np.testing.assert_allclose(probabilities[probabilities > 0], all_probabilities[alive], rtol=1e-6)
        token = cut(logits[kept])
        assert token == whole(logits)
        assert token in kept


def test_errors_of_sampling_name_tokens_and_not_columns() -> None:
    sampler = Sampler(SamplingParams(), token_ids=np.array([4, 70, 900]))
    with pytest.raises(GenerationError, match="the logit of token 900 is nan"):
        sampler(np.array([0.0, 1.0, np.nan], dtype=np.float32))
    with pytest.raises(GenerationError, match="4 logits don't fit the 3 tokens that are kept"):
        sampler(np.zeros(4, dtype=np.float32))
    with pytest.raises(GenerationError, match="prompt token id -1 is negative"):
        Sampler(SamplingParams(), [-1], token_ids=np.array([4]))
