"""The numbers of a robot's state and actions: normalizing, discretizing, relative actions, padding.

Each project's formula is kept as it is, rounding included. openpi's statistics are float64, read from JSON, so that its
results are, but what is done before a statistic is met stays in the values' float32. LeRobot's statistics take
the values' dtype, which is float32 unless a robot sends float64.
With d the width of a dimension's range:

|          | openpi                                        | LeRobot                                           |
|----------|-----------------------------------------------|---------------------------------------------------|
| quantile | (x - q01) / (d + 1e-6) * 2 - 1, d = q99 - q01 | 2 (x - q01) / d - 1, d = 1e-8 where q99 = q01     |
| min-max  | not known there                               | 2 (x - min) / d - 1, d = 1e-8 where max = min     |
| mean-std | (x - mean) / (std + 1e-6)                     | (x - mean) / (std + 1e-8), back: x std + mean     |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.errors import BundleError
from edgewright.runtime.policy.spec import NEEDED, Convention, Norm, PolicySpec, Statistics, Vector

Floats = npt.NDArray[np.floating[Any]]

_OPENPI_EPSILON = 1e-6
_LEROBOT_EPSILON = 1e-8


def normalize(values: Floats, statistics: Mapping[str, Vector], norm: Norm, convention: Convention) -> Floats:
    """Return `values` [..., numbers] in the units a policy was trained in.

    The result is float64 for openpi (`identity`: the values themselves); for LeRobot float32, or float64 where the
    values are. Statistics of more numbers than the values have are cut (openpi; LeRobot's must fit). Raises BundleError
    if statistics are missing or of another size.
    """
    values = _computed(values, convention)
    if norm == "identity":
        return values
    low, high = _vectors(statistics, norm, convention, values.shape[-1], values.dtype)
    if norm == "mean-std":
        return (values - low) / (high + (_OPENPI_EPSILON if convention == "openpi" else _LEROBOT_EPSILON))
    width = _width(low, high, convention)
    if convention == "openpi":
        return (values - low) / width * 2.0 - 1.0
    return 2.0 * (values - low) / width - 1.0


def unnormalize(values: Floats, statistics: Mapping[str, Vector], norm: Norm, convention: Convention) -> Floats:
    """Return normalized `values` [..., numbers] in the robot's own units: the inverse of `normalize`, dtypes as there.

    Statistics of more numbers than the values have are cut. openpi passes the numbers beyond the statistics through
    (quantile) or gives them mean 0 and deviation 1; for LeRobot all must have some. Raises BundleError if statistics
    are missing or do not fit.
    """
    values = _computed(values, convention)
    if norm == "identity":
        return values
    known = values.shape[-1]
    if convention == "openpi":
        known = min([known, *(statistics[name].size for name in NEEDED[norm] if name in statistics)])
    low, high = _vectors(statistics, norm, convention, known, values.dtype)
    inside, beyond = values[..., :known], values[..., known:]
    if norm == "mean-std":
        if convention == "lerobot":
            return inside * high + low
        inside, beyond = inside * (high + _OPENPI_EPSILON) + low, beyond.astype(np.float64) * (1.0 + _OPENPI_EPSILON)
    else:
        width = _width(low, high, convention)
        if norm == "quantile" and convention == "lerobot":
            inside = (inside + 1.0) * width / 2.0 + low
        else:
            inside = (inside + 1.0) / 2.0 * width + low
    return np.concatenate([inside, beyond], axis=-1)


def discretize(state: Floats, bins: int = 256) -> npt.NDArray[np.int64]:
    """Return the bin of each number of a normalized state: `bins` equal ones from -1 to 1, each with its left edge.

    Below -1 the bin is -1, from 1 upwards it is the last one (`bins - 1`), as it is for NaN: nothing is clipped before.
    """
    edges = np.linspace(-1.0, 1.0, bins + 1)[:-1]
    return (np.digitize(state, edges) - 1).astype(np.int64)


def absolute(actions: Floats, state: Floats, mask: Sequence[bool]) -> Floats:
    """Return `actions` [..., horizon, numbers] with the state [..., numbers], not normalized, added where `mask` says.

    The mask may be shorter than the actions: the numbers beyond it are absolute already.
    """
    count = len(mask)
    result = actions.copy()
    offset = np.where(np.asarray(mask, np.bool_), state[..., :count], 0.0).astype(actions.dtype)
    result[..., :count] += np.expand_dims(offset, -2)
    return result


def pad(values: Floats, numbers: int) -> npt.NDArray[np.float32]:
    """Return `values` [..., n] as float32 with zeros up to `numbers`; values that are longer stay as they are."""
    missing = max(0, numbers - values.shape[-1])
    return np.pad(values.astype(np.float32), [(0, 0)] * (values.ndim - 1) + [(0, missing)])


def robot_actions(spec: PolicySpec, statistics: Statistics, actions: Floats, state: Floats) -> npt.NDArray[np.float32]:
    """Return what the robot is sent for a policy's output.

    `actions` [..., horizon, model_action_dim] are as the last denoise step left them, `state` [..., state_dim] as the
    robot gave it; the result is float32 [..., horizon, action_dim]: cut to the robot's numbers, un-normalized, then
    made absolute where the spec says. Raises BundleError if statistics are missing or do not fit.
    """
    mine = unnormalize(actions[..., : spec.action_dim], statistics.actions, spec.action_norm, spec.convention)
    return absolute(mine, state, spec.delta_mask).astype(np.float32)


def check_statistics(spec: PolicySpec, statistics: Statistics) -> None:
    """Raise BundleError if the statistics the spec's normalization needs are missing or of another robot's size."""
    sizes = {"state": (spec.state_norm, spec.state_dim), "actions": (spec.action_norm, spec.action_dim)}
    for name, (norm, numbers) in sizes.items():
        group: Mapping[str, Vector] = getattr(statistics, name)
        if numbers and not (spec.convention == "openpi" and name == "actions"):
            _fitting(group, norm, spec.convention, numbers, name)
        elif numbers:
            _fitting(group, norm, spec.convention, 0, name)


def _computed(values: Floats, convention: Convention) -> Floats:
    """Return the values in the dtype that the convention begins with."""
    if convention == "openpi" or values.dtype == np.float64:
        return values
    return values.astype(np.float32)


def _width(low: Floats, high: Floats, convention: Convention) -> Floats:
    if convention == "openpi":
        return high - low + _OPENPI_EPSILON
    width = high - low
    return np.where(width == 0, np.asarray(_LEROBOT_EPSILON, width.dtype), width)


def _vectors(
    statistics: Mapping[str, Vector], norm: Norm, convention: Convention, numbers: int, dtype: Any
) -> tuple[Floats, Floats]:
    """Return the two vectors that a way of normalizing needs, cut to `numbers`."""
    _fitting(statistics, norm, convention, numbers, "the values")
    found = [statistics[name][:numbers] for name in NEEDED[norm]]
    if convention == "lerobot":
        found = [vector.astype(dtype) for vector in found]
    return found[0], found[1]


def _fitting(group: Mapping[str, Vector], norm: Norm, convention: Convention, numbers: int, name: str) -> None:
    if norm == "min-max" and convention == "openpi":
        raise BundleError(
            "The bundle asks for min-max normalization as openpi does it, but openpi has none: build the bundle again."
        )
    missing = [key for key in NEEDED[norm] if key not in group]
    if missing:
        raise BundleError(
            f"The bundle's statistics of {name} lack {' and '.join(missing)}, which {norm} normalization needs: build"
            " the bundle again with the statistics the policy was trained with."
        )
    for key in NEEDED[norm]:
        size = group[key].size
        if size < numbers or (convention == "lerobot" and size != numbers):
            raise BundleError(
                f"The bundle's statistics of {name} are of {size} numbers, but {numbers} are to be normalized, so they"
                " are of another robot: build the bundle again with the statistics of this one."
            )
