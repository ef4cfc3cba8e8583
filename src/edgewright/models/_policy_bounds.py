"""The largest sizes of a policy's stages: what observations can ask for, or what a bundle's contracts say."""

from __future__ import annotations

from collections.abc import Mapping

from edgewright.contract import StageContract
from edgewright.models._policy import PolicyBounds
from edgewright.runtime.policy.spec import PolicySpec


def bounds_of_spec(spec: PolicySpec, batch: int) -> PolicyBounds:
    """Return the sizes that at most `batch` observations at once can ask for."""
    cameras = max(1, len(spec.cameras))
    return PolicyBounds(
        batch=batch,
        views=batch * cameras,
        prefix=cameras * spec.image_tokens + spec.max_tokens + 1,
        horizon=spec.horizon,
    )


def bounds_of_contracts(contracts: Mapping[str, StageContract]) -> PolicyBounds:
    """Return the sizes that stages were built for; raises KeyError where a stage or a size is missing."""
    prefix = contracts["prefix"].bounds
    return PolicyBounds(
        batch=prefix["batch"][1],
        views=contracts["vision"].bounds["views"][1],
        prefix=prefix["prefix"][1],
        horizon=contracts["denoise"].bounds["horizon"][1],
    )
