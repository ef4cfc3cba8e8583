"""Inputs of make_formats.py: small float32 matrices with the values at which number formats differ."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

E2M1_TIES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]


def _random(rng: np.random.Generator, rows: int, columns: int) -> Array:
    return (rng.standard_normal((rows, columns)) * 0.05).astype(np.float32)


def _ties(rng: np.random.Generator) -> Array:
    """Return rows whose blocks of 16 hold 6.0 (so a scale is a power of two) and every tie of E2M1, both signs."""
    block = np.array([*E2M1_TIES, *(-v for v in E2M1_TIES), 6.0, -0.0], np.float32)
    rows = [np.concatenate([rng.permutation(block) for _ in range(4)]) * np.float32(2.0**k) for k in (0, 0, 3, -5)]
    return np.stack(rows).astype(np.float32)


def matrices(*names: str, seed: int = 7) -> dict[str, Array]:
    """Return name to float32 [rows, columns] for these names or all; columns are multiples of 32 except in `odd`.

    `tiny_blocks`: one block with amax 1, others so small that the E4M3 scale of a block falls below 2**-9 or below
    2**-10. `zero_block`: one row and two blocks of zeros. `boundary`: amax of a block just below, at and just above
    6 * 2**k, 448 * 2**k and 7 * 2**k, where a rule for the exponent of an E8M0 scale shows. `ties` is described above.
    `groups`, `one_sign`, `int_ties`: for integer groups of up to 128; `int_ties` holds halves and groups with two equal
    largest magnitudes. `block`: 134 x 140, exact in float16, for blocks of 128 x 128.
    """
    rng = np.random.default_rng(seed)
    outliers = _random(rng, 6, 128)
    outliers[rng.integers(0, 6, 8), rng.integers(0, 128, 8)] *= np.float32(60)
    zero_block = _random(rng, 4, 64)
    zero_block[1] = 0
    zero_block[0, 0:32] = 0
    zero_block[3, 48:64] = 0
    tiny = _random(rng, 4, 64)
    tiny[0, 0] = 1.0
    factors = [[1, 1, 3e-5, 1e-6], [1e-4, 2e-5, 2.5e-5, 3e-6], [1e-9, 1e-12, 1e-20, 1e-38], [1e-3, 1e-4, 1e-5, 1e-40]]
    tiny *= np.repeat(np.array(factors, np.float32), 16, axis=1)
    tiny[0, 0] = 1.0
    odd = _random(rng, 5, 45)
    groups = (rng.standard_normal((6, 256)) * 0.05 + 0.01).astype(np.float32)
    int_ties = (rng.integers(-16, 15, (4, 64)) / 2).astype(np.float32)
    int_ties[:, ::32] = [[-8.0, 7.0], [7.5, -7.5], [7.0, 7.5], [-8.0, -8.0]]
    block = _random(rng, 134, 140).astype(np.float16)
    block[130:] *= np.float16(20)
    every = {
        "groups": groups,
        "one_sign": np.abs(groups[:3, :128]),
        "int_ties": int_ties,
        "block": block.astype(np.float32),
        "random": _random(rng, 8, 96),
        "outliers": outliers,
        "zero_block": zero_block,
        "tiny_blocks": tiny,
        "ties": _ties(rng),
        "boundary": _boundary(rng),
        "odd": odd,
    }
    return {name: every[name] for name in names or every}


def _boundary(rng: np.random.Generator) -> Array:
    """Return 20 blocks of 32 (rows of 64) whose largest magnitude is a boundary of an exponent rule."""
    tops: list[np.float32] = []
    for base in (6.0, 448.0, 4.0, 256.0, 7.0, 5.0):
        value = np.float32(base * 2.0**-3)
        tops += [np.nextafter(value, np.float32(0)), value, np.nextafter(value, np.float32(np.inf))]
    tops += [np.float32(1.0), np.float32(1.75 * 256)]
    blocks = rng.uniform(-0.9, 0.9, (len(tops), 32)).astype(np.float32) * np.array(tops)[:, None]
    blocks[:, 5] = np.array(tops) * np.where(np.arange(len(tops)) % 2, -1, 1)
    return blocks.astype(np.float32).reshape(-1, 64)


def cast_inputs(seed: int = 3) -> Array:
    """Return float32 values for the element casts: all ties, saturation, subnormals, infinities, NaN and 600 others."""
    rng = np.random.default_rng(seed)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1e-38,
        3.0e38,
        1.0,
        1.5,
        3.0,
        6.0,
        1.4999999,
        2.0**-127,
    ]
    special += [440, 447, 448, 449, 463.99997, 464, 464.00003, 465, 480, 512, 1e9, 5.0000005, 6.5, 7, 7.5, 8]
    special += [2.0**-9, 2.0**-10, 2.0**-10 * 1.0000001, 1.5 * 2.0**-9, 2.0**-6, 2.0**-6 * 0.9375, 2.0**-128, 2.0**-126]
    codes = np.arange(0, 126)
    exponent, mantissa = codes >> 3, codes & 7
    e4m3 = np.where(exponent > 0, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa / 8 * 2.0**-6)
    ties = (e4m3[1:] + e4m3[:-1]) / 2
    spread = rng.standard_normal(300) * 2.0 ** rng.integers(-12, 10, 300)
    small = rng.standard_normal(300) * 4
    values = np.concatenate([special, [-v for v in special], ties, -ties[::5], E2M1_TIES, spread, small])
    return values.astype(np.float32)
