"""From actions that a robot is sent back to how the model sees them, so that a chunk can continue them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edgewright.errors import GenerationError
from edgewright.runtime.policy.numbers import Floats, normalize, pad
from edgewright.runtime.policy.spec import NEEDED, PolicySpec, Statistics, Vector


def model_actions(
    spec: PolicySpec, statistics: Statistics, actions: npt.ArrayLike, state: Floats
) -> npt.NDArray[np.float32]:
    """Return the model's float32 [n, model_action_dim] of a robot's actions [n, action_dim]: what made them, inverted.

    `actions` are absolute and in the robot's units; `state` [state_dim] is the one that the new chunk is relative to,
    so that relative actions are expressed anew. A dimension that never moved in the data gets the one value it has
    there: dividing by its width would blow up rounding. Raises GenerationError for actions of another shape or which
    are no numbers, BundleError if statistics are missing or do not fit.
    """
    values = _checked(spec, actions)
    count = len(spec.delta_mask)
    values[:, :count] -= np.where(np.asarray(spec.delta_mask, np.bool_), state[:count].astype(np.float64), 0.0)
    known = values.shape[-1]
    if spec.convention == "openpi":  # what is beyond the statistics isn't normalized
        known = min(
            [known, *(statistics.actions[name].size for name in NEEDED[spec.action_norm] if name in statistics.actions)]
        )
    result = values.copy()
    result[:, :known] = normalize(values[:, :known], statistics.actions, spec.action_norm, spec.convention)
    still = _never_moved(statistics.actions, spec, known)
    result[:, :known][:, still] = 0.0 if spec.action_norm == "mean-std" else -1.0
    return pad(result, spec.model_action_dim)


def _never_moved(statistics: Mapping[str, Vector], spec: PolicySpec, known: int) -> npt.NDArray[np.bool_]:
    """Return which of the first `known` dimensions had one value in the data."""
    if spec.action_norm == "identity":
        return np.zeros(known, np.bool_)
    first, second = (statistics[name][:known].astype(np.float32) for name in NEEDED[spec.action_norm])
    still: npt.NDArray[np.bool_] = second == 0 if spec.action_norm == "mean-std" else first == second
    return still


def _checked(spec: PolicySpec, actions: npt.ArrayLike) -> npt.NDArray[np.float64]:
    try:
        values = np.array(actions, np.float64)
    except (TypeError, ValueError):
        raise GenerationError(
            "The committed actions are no array of numbers: give rows of the robot's actions."
        ) from None
    if values.ndim != 2 or values.shape[1] != spec.action_dim:
        raise GenerationError(
            f"The committed actions have the shape {list(values.shape)}, but an action has {spec.action_dim} numbers: "
            f"give [n, {spec.action_dim}]."
        )
    if not np.isfinite(values).all():
        raise GenerationError("The committed actions have NaN or infinite values: commit only what the robot was sent.")
    return values
