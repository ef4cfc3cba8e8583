"""Camera images as a policy's vision stage takes them: fitted into a square with padding, from -1 to 1.

The two projects scale differently, and the difference reaches many grey levels, so each way is rebuilt to the bit:

- `pil-center` (openpi): grey levels, scaled as Pillow's BILINEAR does it: a triangle as wide as the scale, so that
  shrinking averages; weights of 22 bits; first along the rows, rounded to grey levels, then along the columns. (Pillow
  13 takes the columns first where an image is about twice as high as wide, or more, which moves some pixels by one
  level; openpi pins an older one.) Float images are made grey levels by cutting off, not by rounding.
- `torch-center`, `torch-left-top` (LeRobot): float32, scaled as PyTorch's `interpolate` does it (bilinear,
  align_corners False): two neighbors in each direction, whatever the scale, so that shrinking leaves pixels out.

The sides keep their ratio; `center` puts half of the padding on each side (the odd pixel right and below), `left-top`
puts all of it left and above. Padding is black, -1 in the result. An image of the right size is left as it is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.errors import ObservationError
from edgewright.runtime.policy.spec import PolicySpec

Pixels = npt.NDArray[Any]
Image = npt.NDArray[np.float32]

#: What a camera that isn't there shows: black.
BLACK = -1.0

_PRECISION_BITS = 22
_LEVELS = np.arange(256, dtype=np.float32) / np.float32(255.0)


def resize(image: Pixels, spec: PolicySpec) -> Image:
    """Return an image for the vision stage: float32 [3, height, width], -1 to 1.

    `image` [height, width, 3] is uint8, or float from 0 to 1. Raises ObservationError for an image so much longer than
    wide, or wider than long, that nothing is left of it.
    """
    height, width = spec.image_size
    inner = fitted_size(image.shape[0], image.shape[1], height, width)
    if spec.resize == "pil-center":
        levels = image if image.dtype == np.uint8 else (255 * image).astype(np.uint8)
        unit = _LEVELS[resample_levels(levels, *inner)]
    else:
        unit = resample_float(image, *inner)
        if spec.resize == "torch-center":
            unit = np.clip(unit, 0.0, 1.0)
    missing = height - inner[0], width - inner[1]
    top, left = missing if spec.resize == "torch-left-top" else (missing[0] // 2, missing[1] // 2)
    result = np.full((3, height, width), BLACK, np.float32)
    region = result[:, top : top + inner[0], left : left + inner[1]]
    np.multiply(unit.transpose(2, 0, 1), np.float32(2.0), out=region)
    region -= np.float32(1.0)
    return result


def fitted_size(height: int, width: int, into_height: int, into_width: int) -> tuple[int, int]:
    """Return height and width of an image scaled to fit, fractions of a pixel cut off; ObservationError if one is 0."""
    if (height, width) == (into_height, into_width):
        return height, width
    ratio = max(width / into_width, height / into_height)
    fitted = int(height / ratio), int(width / ratio)
    if 0 in fitted:
        raise ObservationError(
            f"An image of {height} x {width} pixels scaled to {into_height} x {into_width} would have no pixel left in"
            " one direction: send the whole picture of the camera."
        )
    return fitted


def resample_levels(levels: Pixels, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return uint8 [h, w, 3] scaled to `height` x `width`, equal to Pillow's BILINEAR."""
    result = levels
    if result.shape[1] != width:
        result = _resample_first(result.transpose(1, 0, 2), width).transpose(1, 0, 2)
    if result.shape[0] != height:
        result = _resample_first(result, height)
    return result


def _resample_first(levels: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Scale the first axis of uint8 [n, m, 3] to `size`."""
    levels = np.ascontiguousarray(levels)
    indices, weights = _level_weights(levels.shape[0], size)
    total = np.full((size, *levels.shape[1:]), 1 << (_PRECISION_BITS - 1), np.int32)
    for index, weight in zip(indices, weights, strict=True):
        total += levels[index] * weight[:, None, None]
    total >>= _PRECISION_BITS
    return np.clip(total, 0, 255).astype(np.uint8)


@lru_cache(maxsize=32)
def _level_weights(size: int, scaled: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return source index and weight (22 fraction bits) of each tap of each output: two arrays [taps, scaled]."""
    scale = size / scaled
    support = max(scale, 1.0)
    center = (np.arange(scaled) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    count = np.minimum((center + support + 0.5).astype(np.int64), size) - first
    taps = np.arange(count.max())[:, None]
    indices = first + taps
    triangle = np.maximum(1.0 - np.abs((indices - center + 0.5) * (1.0 / support)), 0.0)
    triangle[taps >= count] = 0.0
    share = triangle / triangle.sum(axis=0)
    weights = (0.5 + share * (1 << _PRECISION_BITS)).astype(np.int32)
    return np.minimum(indices, size - 1), weights


def resample_float(image: Pixels, height: int, width: int) -> Image:
    """Return uint8 or float [h, w, 3] scaled to `height` x `width` as float32 from 0 to 1, as PyTorch does it."""
    if image.shape[:2] == (height, width):
        return _unit(image)
    above, below, down = _neighbors(image.shape[0], height)
    left, right, across = _neighbors(image.shape[1], width)
    near, far = (np.float32(1.0) - across)[:, None], across[:, None]
    rows = []
    for index in (above, below):
        picked = image[index]
        rows.append(_unit(picked[:, left]) * near + _unit(picked[:, right]) * far)
    weight = down[:, None, None]
    result: Image = rows[0] * (np.float32(1.0) - weight) + rows[1] * weight
    return result


def _unit(pixels: Pixels) -> Image:
    return _LEVELS[pixels] if pixels.dtype == np.uint8 else pixels.astype(np.float32)


@lru_cache(maxsize=32)
def _neighbors(size: int, scaled: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the two source indices of each output and the weight of the second."""
    # The place is a float32 product and difference, rounded once (a fused multiply-add): float64 holds it exactly.
    scale = np.float64(np.float32(size) / np.float32(scaled))
    place = (scale * (np.arange(scaled) + 0.5) - 0.5).astype(np.float32)
    place = np.maximum(place, np.float32(0.0))
    first = np.minimum(place.astype(np.int64), size - 1)
    weight = np.clip(place - first.astype(np.float32), 0.0, 1.0).astype(np.float32)
    return first, np.minimum(first + 1, size - 1), weight
