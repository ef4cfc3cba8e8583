"""Scaling with padding: Pillow's and PyTorch's arithmetic, rebuilt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from policy_inputs import spec_of

from edgewright.errors import ObservationError
from edgewright.runtime.policy.images import BLACK, fitted_size, resample_float, resample_levels, resize


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


SIZES = [(37, 53, 39, 56), (48, 64, 42, 56), (480, 640, 42, 56), (5, 9, 124, 224), (1, 7, 8, 56), (30, 30, 30, 21)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_grey_levels_are_pillows(size: tuple[int, int, int, int], seed: int) -> None:
    height, width, scaled_height, scaled_width = size
    image = picture(height, width, seed)
    if seed:
        image = np.where(image > 127, 255, 0).astype(np.uint8)  # full contrast: rounding and clipping at both ends
    expected = np.asarray(Image.fromarray(image).resize((scaled_width, scaled_height), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resample_levels(image, scaled_height, scaled_width), expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(9, 90), st.integers(0, 90), st.integers(2, 70), st.integers(0, 2**32 - 1))
def test_wide_images_are_pillows(height: int, more: int, size: int, seed: int) -> None:
    """Images that are not tall: Pillow 13 has another order of the two directions for those."""
    image = picture(height, height + more, seed)
    scaled = fitted_size(*image.shape[:2], size + 20, size + 20)
    expected = np.asarray(Image.fromarray(image).resize(scaled[::-1], Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resample_levels(image, *scaled), expected)


def test_the_rows_come_first_in_a_tall_image() -> None:
    """As in Pillow before version 13, which openpi pins; the other order rounds differently."""
    image = picture(61, 29)
    first_rows = resample_levels(resample_levels(image, 61, 13), 28, 13)
    first_columns = resample_levels(resample_levels(image, 28, 29), 28, 13)
    np.testing.assert_array_equal(resample_levels(image, 28, 13), first_rows)
    assert (first_rows != first_columns).any()


def bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Two taps in each direction, pixel by pixel in float64."""
    result = np.empty((height, width, 3))
    for row in range(height):
        for column in range(width):
            y = max(0.0, (row + 0.5) * image.shape[0] / height - 0.5)
            x = max(0.0, (column + 0.5) * image.shape[1] / width - 0.5)
            top, left = int(y), int(x)
            below, right = min(top + 1, image.shape[0] - 1), min(left + 1, image.shape[1] - 1)
            dy, dx = y - top, x - left
            near = image[top, left] * (1 - dx) + image[top, right] * dx
            far = image[below, left] * (1 - dx) + image[below, right] * dx
            result[row, column] = near * (1 - dy) + far * dy
    return result


@pytest.mark.parametrize("size", [(37, 53, 39, 56), (61, 29, 28, 13), (5, 9, 31, 56), (1, 7, 8, 56)], ids=str)
def test_floats_have_two_taps(size: tuple[int, int, int, int]) -> None:
    height, width, scaled_height, scaled_width = size
    image = picture(height, width)
    expected = bilinear(image / 255, scaled_height, scaled_width)
    np.testing.assert_allclose(resample_float(image, scaled_height, scaled_width), expected, rtol=0, atol=1e-5)
    as_float = (image / 255).astype(np.float32)
    np.testing.assert_array_equal(
        resample_float(as_float, scaled_height, scaled_width), resample_float(image, scaled_height, scaled_width)
    )


def black(image: np.ndarray) -> tuple[list[int], list[int]]:
    rows, columns = (image == BLACK).all(axis=(0, 2)), (image == BLACK).all(axis=(0, 1))
    return np.flatnonzero(rows).tolist(), np.flatnonzero(columns).tolist()


@pytest.mark.parametrize("name", ["pi05_openpi", "pi05", "smolvla"])
def test_padding(name: str) -> None:
    """Half on each side, the odd pixel right and below; LeRobot's SmolVLA puts all of it left and above."""
    spec = spec_of(name, image_size=(28, 28))
    above = name == "smolvla"
    wide = resize(np.full((25, 28, 3), 200, np.uint8), spec)
    assert black(wide) == ([0, 1, 2] if above else [0, 26, 27], [])
    tall = resize(np.full((28, 25, 3), 200, np.uint8), spec)
    assert black(tall) == ([], [0, 1, 2] if above else [0, 26, 27])
    np.testing.assert_allclose(wide[wide != BLACK], 200 / 255 * 2 - 1, rtol=1e-6)


@pytest.mark.parametrize("name", ["pi05_openpi", "pi05", "smolvla"])
def test_an_image_of_the_right_size_is_only_scaled_in_range(name: str) -> None:
    spec = spec_of(name, image_size=(20, 31))
    image = picture(20, 31)
    found = resize(image, spec)
    expected = image.transpose(2, 0, 1).astype(np.float32) / np.float32(255) * np.float32(2) - np.float32(1)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous


def test_openpi_cuts_floats_to_grey_levels() -> None:
    spec = spec_of("pi05_openpi", image_size=(1, 4))
    image = np.repeat(np.array([0.0, 0.5, 0.999, 1.0], np.float32)[None, :, None], 3, axis=2)
    levels = np.array([0, 127, 254, 255], np.float32)
    np.testing.assert_allclose(resize(image, spec)[1, 0], levels / 255 * 2 - 1, rtol=0, atol=1e-7)
    lerobot = resize(image, spec_of("pi05", image_size=(1, 4)))
    np.testing.assert_allclose(lerobot[1, 0], image[0, :, 0] * 2 - 1, rtol=0, atol=1e-7)


def test_sides_keep_their_ratio_and_are_cut_off() -> None:
    assert fitted_size(480, 640, 224, 224) == (168, 224)
    assert fitted_size(720, 1280, 224, 224) == (126, 224)
    assert fitted_size(37, 53, 56, 56) == (39, 56)
    assert fitted_size(28, 28, 28, 28) == (28, 28)
    with pytest.raises(ObservationError, match="no pixel left"):
        fitted_size(1, 500, 56, 56)
