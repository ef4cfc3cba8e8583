"""Robot observations to calibrate a policy on: read, chosen by a seed, prepared as the runtime prepares them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.calibration.arrays import INPUT_IDS, TEXT, ArraySamples, Sample, text_of
from edgewright.calibration.data import ENGLISH
from edgewright.calibration.observations import IMAGES, is_observations, read_observations
from edgewright.calibration.shards import INDEX, is_shards, read_shards
from edgewright.checkpoint.policies.description import TOKENIZER
from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.errors import CalibrationDataError, ObservationError
from edgewright.files import sha256_of
from edgewright.quant.recipe import Data
from edgewright.runtime.policy.observation import Prepared, prepare
from edgewright.runtime.policy.prompt import load_tokenizer


@dataclass(frozen=True)
class Observations:
    """A calibration set of a policy: `digest` is that of all prepared arrays, `record` says where they came from.

    Iterating prepares one observation at a time, in the same order every time. `seed` decides the noise that a denoise
    loop begins with.
    """

    checkpoint: PolicyCheckpoint
    samples: ArraySamples
    seed: int
    count: int
    digest: str
    record: Mapping[str, Any]

    def __iter__(self) -> Iterator[Prepared]:
        """Yield the observations; raises CalibrationDataError on one that the policy can't take."""
        return _prepared(self.checkpoint, self.samples)


def load_policy_observations(checkpoint: PolicyCheckpoint, data: Data) -> Observations:
    """Read what a recipe calibrates a policy on: a folder of observations, or of what `calibrate` made of one.

    Raises CalibrationDataError where there is none, or an observation doesn't fit the policy.
    """
    samples = observation_samples(data.source, data.sequences, data.seed)
    digest, count, notes = hashlib.sha256(), 0, dict[str, None]()
    for one in _prepared(checkpoint, samples):
        for array in (one.images, one.token_ids, one.state):
            digest.update(f"{array.dtype.str}{array.shape};".encode() + np.ascontiguousarray(array).tobytes())
        notes |= dict.fromkeys(one.notes)
        count += 1
    record = dict(samples.record)
    record["notes"] = [*record["notes"], *notes]
    return Observations(checkpoint, samples, data.seed, count, digest.hexdigest(), record)


def observation_samples(source: str, sequences: int | None, seed: int) -> ArraySamples:
    """Return the samples of a folder of observations, or of one that `calibrate` wrote; see above."""
    folder = Path(source)
    if source == ENGLISH or not folder.is_dir():
        what = "none by default" if source == ENGLISH else f"no folder {source}"
        raise CalibrationDataError(
            f"A robot policy is calibrated on observations, and there is {what}: name a folder of observations with "
            "--data, or as 'data' in the recipe's calibration (see docs/calibration.md)."
        )
    if is_shards(folder):
        return _stored(folder, sequences, seed)
    if not is_observations(folder):
        raise CalibrationDataError(
            f"{folder} holds no .safetensors files of observations: put some there (see docs/calibration.md)."
        )
    return read_observations(folder, sequences=sequences, seed=seed)


def _stored(folder: Path, sequences: int | None, seed: int) -> ArraySamples:
    """Return samples of a folder that `calibrate` wrote."""
    shards = read_shards(folder)
    if shards.kind != "arrays" or shards.record.get("kind") != "observations":
        raise CalibrationDataError(
            f"{folder} holds {shards.record.get('kind')} and a robot policy needs observations: make a set of those."
        )
    places = [(name, number) for name, count in shards.files.items() for number in range(count)]
    opened = functools.lru_cache(maxsize=2)(lambda name: read_safetensors(folder / name))

    def load(index: int) -> Sample:
        name, number = places[index]
        prefix = f"{number:06}."
        found = {key.removeprefix(prefix): t.read() for key, t in opened(name).items() if key.startswith(prefix)}
        return {key: values for key, values in found.items() if key != INPUT_IDS}  # of some other tokenizer

    kinds = {key: "image" if key.startswith(IMAGES) else "vector" for key in load(0) if key != TEXT}
    source = {"name": INDEX, "bytes": (folder / INDEX).stat().st_size, "sha256": sha256_of(folder / INDEX)}
    return ArraySamples("observations", [source], kinds, len(places), load, sequences=sequences, seed=seed)


def fitting(checkpoint: PolicyCheckpoint, samples: ArraySamples) -> Iterator[Sample]:
    """Yield the samples themselves; raises CalibrationDataError on one that the policy can't take."""
    for sample, _ in _both(checkpoint, samples):
        yield sample


def _prepared(checkpoint: PolicyCheckpoint, samples: ArraySamples) -> Iterator[Prepared]:
    for _, prepared in _both(checkpoint, samples):
        yield prepared


def _both(checkpoint: PolicyCheckpoint, samples: ArraySamples) -> Iterator[tuple[Sample, Prepared]]:
    spec = checkpoint.spec
    tokenizer = load_tokenizer(spec, checkpoint.sidecars()[TOKENIZER])
    for number, sample in enumerate(samples):
        observation: dict[str, Any] = {name: values for name, values in sample.items() if name != TEXT}
        if TEXT in sample:
            observation["task"] = text_of(sample)
        try:
            prepared = prepare(spec, checkpoint.statistics, tokenizer, observation)
        except ObservationError as error:
            raise CalibrationDataError(f"Calibration sample {number} doesn't fit the policy. {error}") from None
        yield sample, prepared
