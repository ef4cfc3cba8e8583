"""Images for calibration: PNG and JPEG files decoded with Pillow, and folders of images with their texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.calibration.arrays import INPUT_IDS, TEXT, ArraySamples, Sample, text_array
from edgewright.calibration.documents import IMAGE_SUFFIXES, file_record, list_files, read_texts
from edgewright.checkpoint.text import shown
from edgewright.errors import BundleError, CalibrationDataError, MissingExtraError
from edgewright.files import inside
from edgewright.runtime.text import Tokenizer

METADATA = "metadata.jsonl"
IMAGE = "image"
#: An image with more pixels is refused before it is decoded: a small file can announce a huge one.
MAX_PIXELS = 64_000_000
_FORMATS = ("PNG", "JPEG")


@dataclass(frozen=True)
class _Pair:
    name: str
    path: Path
    text: str


def decode_image(path: Path, name: str) -> npt.NDArray[np.uint8]:
    """Return an image file's pixels, uint8 [height, width, 3]: upright as its EXIF says, transparency dropped.

    Raises CalibrationDataError when it is no whole PNG or JPEG file, too large, or has 16 bits a channel;
    MissingExtraError without Pillow.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise MissingExtraError(
            "Images are decoded with the package pillow, which is not installed: pip install 'edgewright[host]'."
        ) from None
    try:
        with Image.open(path, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise CalibrationDataError(
                    f"The image {name} announces {width} x {height} pixels, more than {MAX_PIXELS:,}: make it smaller."
                )
            if image.mode.startswith(("I", "F")):
                raise CalibrationDataError(
                    f"The image {name} has more than 8 bits a channel ({image.mode}): convert it to 8 bits."
                )
            upright = ImageOps.exif_transpose(image)
            return np.asarray(upright.convert("RGB"), np.uint8).copy()
    except (OSError, ValueError, SyntaxError, OverflowError, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split()).replace(str(path), name)[:200]
        raise CalibrationDataError(
            f"The image {name} can't be decoded ({reason}): give a whole PNG or JPEG file."
        ) from None


def is_image_text(path: Path) -> bool:
    """Whether a path is a folder that holds images."""
    return path.is_dir() and bool(list_files(path, IMAGE_SUFFIXES))


def read_image_text(
    folder: Path,
    tokenizer: Tokenizer | None = None,
    *,
    sequences: int | None = None,
    length: int | None = None,
    seed: int = 0,
) -> ArraySamples:
    """Open a folder of images with their texts: `NAME.txt` beside each, or a `metadata.jsonl` of file_name and text.

    A sample has `image` uint8 [height, width, 3], `text` (its UTF-8 bytes) and, with a tokenizer, `input_ids` int64,
    at most `length` of them. Raises CalibrationDataError when an image or a text lacks its partner.
    """
    images = list_files(folder, IMAGE_SUFFIXES)
    metadata = folder / METADATA
    listed = metadata.is_file()
    pairs = _from_metadata(folder) if listed else _from_neighbours(folder, images)
    inputs = [(pair.name, pair.path) for pair in pairs]
    inputs += [(METADATA, metadata)] if listed else list_files(folder, (".txt",))
    kinds = {IMAGE: "image", **({INPUT_IDS: "tokens"} if tokenizer else {})}
    notes = []
    if empty := sum(not pair.text.strip() for pair in pairs):
        notes.append(f"{empty} of {len(pairs)} images have an empty text")
    unlisted = len({path for _, path in images} - {pair.path for pair in pairs})
    if listed and unlisted:
        notes.append(f"{unlisted} images that {METADATA} doesn't list were left out")
    sources = [file_record(name, path) for name, path in sorted(set(inputs))]
    load = _loader(pairs, tokenizer, length)
    return ArraySamples("image-text", sources, kinds, len(pairs), load, sequences=sequences, seed=seed, notes=notes)


def _loader(pairs: list[_Pair], tokenizer: Tokenizer | None, length: int | None) -> Callable[[int], Sample]:
    def load(index: int) -> Sample:
        pair = pairs[index]
        sample: Sample = {IMAGE: decode_image(pair.path, pair.name), TEXT: text_array(pair.text)}
        if tokenizer is not None:
            sample[INPUT_IDS] = np.array(tokenizer.encode(pair.text)[:length], np.int64)
        return sample

    return load


def _from_neighbours(folder: Path, images: list[tuple[str, Path]]) -> list[_Pair]:
    files = list_files(folder, (".txt",))
    texts = {name[: -len(".txt")]: text for (name, _), text in zip(files, read_texts(files), strict=True)}
    pairs: dict[str, _Pair] = {}
    for name, path in images:
        stem = name[: -len(path.suffix)]
        if stem in pairs:
            raise CalibrationDataError(
                f"The images {pairs[stem].name} and {name} share one text, {stem}.txt: rename one of them."
            )
        if stem not in texts:
            raise CalibrationDataError(
                f"The image {name} has no text: write it to {stem}.txt, or list the images in {METADATA}."
            )
        pairs[stem] = _Pair(name, path, texts[stem].text)
    if alone := sorted(texts.keys() - pairs.keys()):
        raise CalibrationDataError(f"The text {alone[0]}.txt has no image beside it: add the image or remove the text.")
    return list(pairs.values())


def _from_metadata(folder: Path) -> list[_Pair]:
    (file,) = read_texts([(METADATA, folder / METADATA)])
    pairs = []
    for number, text in enumerate(file.text.split("\n"), 1):
        if not text.strip():
            continue
        where = f"Line {number} of {METADATA}"
        try:
            data: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CalibrationDataError(f"{where} is not valid JSON ({str(error)[:100]}): correct it.") from None
        data = data if isinstance(data, dict) else {}
        name, caption = data.get("file_name"), data.get("text")
        if not isinstance(name, str) or not isinstance(caption, str):
            raise CalibrationDataError(f"{where} has no file_name and text in strings: write both.")
        try:
            path = inside(folder, name)
        except BundleError:
            raise CalibrationDataError(f"{where} names {shown(name)}, which leaves the folder: refused.") from None
        if not path.is_file():
            raise CalibrationDataError(f"{where} names the image {shown(name)}, which is not there: add or unlist it.")
        if any(0xD800 <= ord(c) < 0xE000 for c in caption):
            raise CalibrationDataError(f"{where} has a text with a lone surrogate: write valid Unicode.")
        pairs.append(_Pair(name, path, caption))
    return pairs
