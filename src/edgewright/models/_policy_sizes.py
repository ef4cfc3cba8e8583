"""What must fit together in the sizes of a policy."""

from __future__ import annotations

from edgewright.checkpoint.policies.sizes import PolicySizes
from edgewright.errors import ConfigError


def patches(sizes: PolicySizes, image_size: tuple[int, int]) -> int:
    """Return how many patches a side of a square image has.

    Raises ConfigError where the image is not square, or not whole patches, or these not whole tokens.
    """
    high, wide = image_size
    step = sizes.vision.patch * sizes.pixel_shuffle
    if high != wide or high % step or not high:
        raise ConfigError(
            f"Images of {high} x {wide} pixels are no square of whole tokens of {step} pixels a side: check the size "
            "that images are brought to."
        )
    return high // sizes.vision.patch


def check_towers(sizes: PolicySizes) -> None:
    """Raise ConfigError where the expert can't read the keys and values of the tower that reads the prefix."""
    text, expert = sizes.text, sizes.expert
    for name in ("heads", "kv_heads", "head_dim"):
        if getattr(text, name) != getattr(expert, name):
            raise ConfigError(
                f"The two towers share keys and values, but {name} is {getattr(text, name)} in the one that reads the "
                f"prefix and {getattr(expert, name)} in the expert: check the config's variants."
            )
    if text.heads % text.kv_heads or text.head_dim % 2:
        raise ConfigError(
            f"{text.heads} heads can't share {text.kv_heads} key heads of {text.head_dim}: check the config's sizes."
        )
    if sizes.vision.width % sizes.vision.heads:
        raise ConfigError(
            f"The vision tower's width of {sizes.vision.width} can't be cut into {sizes.vision.heads} heads: check the "
            "config's sizes."
        )
