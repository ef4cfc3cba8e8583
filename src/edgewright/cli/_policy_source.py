"""What the verbs before a build ask of a policy's checkpoint: the flags of what it doesn't say, without features."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._policy import policy_request
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.checkpoint.policy import PolicyOptions


def policy_options(args: argparse.Namespace, *, policy: bool) -> PolicyOptions | None:
    """Return what the flags of policies say, None without them.

    Raises UsageError on what belongs to a build, and on any of these flags where there is no policy.
    """
    request = policy_request(args)
    if request is None:
        return None
    if not policy:
        raise UsageError(
            f"{Path(args.source).name} is not a robot policy, so the flags of policies have no meaning: leave them out."
        )
    if request.features or request.memory_bytes is not None:
        flag = "--feature" if request.features else "--memory"
        raise UsageError(f"Features and verification belong to deploy, so {flag} has no meaning here: remove it.")
    return request.options
