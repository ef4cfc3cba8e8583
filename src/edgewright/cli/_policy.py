"""The flags of robot policies: what their checkpoints don't say, guards, and features."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.cli._parser import positive_int
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.build.sources import PolicyRequest
    from edgewright.checkpoint.policy import PolicyOptions
    from edgewright.runtime.policy.spec import Limits

#: The flags of what only whoever trained the policy knows.
POLICY_FLAGS = (
    "discrete_state", "horizon", "steps", "max_prompt", "statistics", "tokenizer", "state_dim", "action_dim", "cameras",
    "required_cameras", "delta_actions", "limits", "size", "feature", "memory",
)  # fmt: skip


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a verb that builds from a checkpoint."""
    group = parser.add_argument_group("robot policies", "what a policy's checkpoint doesn't say, and what is built")
    add_policy_files(group)
    group.add_argument(
        "--discrete-state",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether pi0.5 reads the state in its prompt",
    )
    group.add_argument("--horizon", type=positive_int, metavar="N", help="actions in a chunk")
    group.add_argument("--steps", type=positive_int, metavar="N", help="denoise steps (default: 10, or the config's)")
    group.add_argument("--max-prompt", type=positive_int, metavar="TOKENS", help="most tokens of a prompt")
    group.add_argument("--state-dim", type=whole, metavar="N", help="numbers of the robot's state")
    group.add_argument("--action-dim", type=positive_int, metavar="N", help="numbers of the robot's action")
    group.add_argument("--cameras", type=names, metavar="A,B", help="names of the cameras, in order")
    group.add_argument("--required-cameras", type=names, metavar="A,B", help="cameras that may not be missing")
    group.add_argument(
        "--delta-actions",
        type=mask,
        metavar="MASK",
        help="which action numbers are relative to the state: 1 or 0 for each, with commas, such as 1,1,1,0",
    )
    group.add_argument("--limits", metavar="FILE", help="YAML of guards: minimum, maximum, rate, jump, deadline_ms ...")
    group.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="a size that no tensor tells, such as text.heads"
    )
    group.add_argument(
        "--feature", action="append", default=[], metavar="NAME=VALUE", help="a rewrite on or off, such as loop=graph"
    )


def add_policy_files(group: Any) -> None:
    """Add the flags that name files beside the checkpoint."""
    group.add_argument("--statistics", metavar="ID|FILE", help="normalization statistics: an asset's id, or a file")
    group.add_argument("--tokenizer", type=Path, metavar="FILE", help="tokenizer.json, or a SentencePiece model")


def add_memory(group: Any) -> None:
    """Add the flag of how much memory a comparison may take."""
    group.add_argument(
        "--memory",
        type=gigabytes,
        metavar="GB",
        help="what one of the float32 stages that engines are compared with may take (default: 4, or what is free); "
        "what takes more is not checked",
    )


def policy_request(args: argparse.Namespace) -> PolicyRequest | None:
    """Return what the flags ask for, None without them; raises UsageError."""
    given = {name: getattr(args, name, None) for name in POLICY_FLAGS}  # not every verb has all of them
    if all(value is None or value == [] for value in given.values()):
        return None
    from edgewright.build.sources import PolicyRequest

    features: dict[str, bool | str] = {}
    if args.feature:
        from edgewright.graph.features import parse_features

        features = parse_features(args.feature)
    return PolicyRequest(_options(args), features, given["memory"])


def _options(args: argparse.Namespace) -> PolicyOptions:
    from edgewright.checkpoint.policy import PolicyOptions
    from edgewright.runtime.policy.spec import Limits

    return PolicyOptions(
        discrete_state=args.discrete_state,
        horizon=args.horizon,
        steps=args.steps,
        max_tokens=args.max_prompt,
        statistics=args.statistics,
        tokenizer=args.tokenizer,
        state_dim=args.state_dim,
        action_dim=args.action_dim,
        cameras=args.cameras,
        required_cameras=args.required_cameras,
        delta_mask=args.delta_actions,
        limits=read_limits(Path(args.limits)) if args.limits else Limits(),
        sizes=_sizes(args.size),
    )


def read_limits(path: Path) -> Limits:
    """Return the guards of a YAML file; raises UsageError for a file or a key that isn't one of guards."""
    from edgewright.checkpoint.yaml_mapping import read_mapping
    from edgewright.errors import BundleError
    from edgewright.runtime.policy.spec import Limits

    default = Limits().to_json()
    data = read_mapping(path, "limits")
    if not data or not data.keys() <= default.keys():
        odd = ", ".join(sorted(data.keys() - default.keys())) or "no keys"
        raise UsageError(f"{path.name} has {odd} where limits are {', '.join(default)}: correct it.")
    try:
        return Limits.from_json({**default, **data})
    except BundleError as error:
        reason = str(error).removeprefix("The bundle's policy.").split(", so ")[0]
        raise UsageError(f"{path.name}: {reason}; correct it.") from None


def gigabytes(text: str) -> int:
    """Argument type: a number of gigabytes above 0; returns bytes."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of gigabytes above 0")
    return int(value * 1e9)


def whole(text: str) -> int:
    """Argument type: an integer from 0 upwards."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 upwards")
    return int(text)


def names(text: str) -> tuple[str, ...]:
    """Argument type: names with commas between."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name")
    return found


def mask(text: str) -> tuple[bool, ...]:
    """Argument type: 1 or 0 for each number, with commas between."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part in ("0", "1") for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a mask such as 1,1,1,0")
    return tuple(part == "1" for part in parts)


def _sizes(texts: Iterable[str]) -> dict[str, float]:
    """Return the sizes of `--size NAME=N`; raises UsageError for another spelling and for a name that comes twice."""
    sizes: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name in sizes:
            raise UsageError(f"The size {name} is given twice: give --size {name}=N once.")
        try:
            sizes[name] = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else float(value)
        except ValueError:
            raise UsageError(f"The size {text!r} is not NAME=NUMBER, such as text.heads=15.") from None
    return sizes
