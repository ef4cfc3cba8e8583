"""Chance that depends on a seed alone: the same on every machine, in every version of NumPy and of Python."""

from __future__ import annotations

import hashlib


def chance(seed: int, what: str, index: int) -> int:
    """Return a number from 0 to 2^64 - 1 for an item, as good as random."""
    digest = hashlib.blake2b(f"{what}:{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def shuffled(count: int, seed: int, what: str) -> list[int]:
    """Return 0 to count - 1 in an order that the seed decides; `what` keeps the orders of different things apart."""
    return sorted(range(count), key=lambda index: (chance(seed, what, index), index))
