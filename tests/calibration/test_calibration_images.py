"""Folders of images with texts: pixels are those that were drawn, partners are complete, bombs don't go off."""

from __future__ import annotations

import io
import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibration_data import ASCII, write_lines
from PIL import Image

from edgewright.calibration import read_image_text, read_shards, text_of, write_shards
from edgewright.calibration.images import MAX_PIXELS, decode_image
from edgewright.errors import CalibrationDataError, MissingExtraError, UsageError


def picture(height: int, width: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images of odd sizes with a text each."""
    root = tmp_path / "images"
    (root / "sub").mkdir(parents=True)
    for name, seed, shape in (("a", 1, (5, 7)), ("b", 2, (3, 3)), ("sub/c", 3, (9, 2))):
        Image.fromarray(picture(*shape, seed)).save(root / f"{name}.png")
        (root / f"{name}.txt").write_text(f"Text of {name}", encoding="utf-8")
    return root


def test_pixels_and_texts(folder: Path) -> None:
    samples = read_image_text(folder, ASCII)
    found = {text_of(sample): sample for sample in samples}
    assert found.keys() == {"Text of a", "Text of b", "Text of sub/c"}
    np.testing.assert_array_equal(found["Text of a"]["image"], picture(5, 7, 1))
    np.testing.assert_array_equal(found["Text of sub/c"]["image"], picture(9, 2, 3))
    assert found["Text of b"]["input_ids"].tolist() == ASCII.encode("Text of b")
    assert found["Text of b"]["image"].dtype == np.uint8


def test_the_record(folder: Path) -> None:
    samples = read_image_text(folder, ASCII, length=6)
    with pytest.raises(UsageError, match="exists once all were read"):
        _ = samples.record
    got = list(samples)
    record = samples.record
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["kind"] == "image-text"
    assert (record["available"], record["samples"], record["duplicates_dropped"]) == (3, 3, 0)
    assert [source["name"] for source in record["sources"]] == [
        "a.png", "a.txt", "b.png", "b.txt", "sub/c.png", "sub/c.txt",
    ]  # fmt: skip
    image = record["coverage"]["image"]
    pixels = np.concatenate([sample["image"].reshape(-1, 3) for sample in got])
    assert image["shapes"] == {"3x3x3": 1, "5x7x3": 1, "9x2x3": 1}
    assert image["min"] == pixels.min(0).tolist()
    assert image["max"] == pixels.max(0).tolist()
    np.testing.assert_allclose(image["mean"], pixels.mean(0), rtol=1e-5)
    assert image["one_colour"] == 0
    assert record["coverage"]["input_ids"]["tokens"] == 18


def test_written_and_read_again(folder: Path, tmp_path: Path) -> None:
    samples = read_image_text(folder, seed=4)
    write_shards(tmp_path / "set", samples, lambda: samples.record, shard_bytes=64)
    stored = read_shards(tmp_path / "set")
    assert stored.record == samples.record
    for read, made in zip(stored.samples(), read_image_text(folder, seed=4), strict=True):
        assert text_of(read) == text_of(made)
        np.testing.assert_array_equal(read["image"], made["image"])


def test_the_seed_decides_which(folder: Path) -> None:
    orders = {tuple(text_of(sample) for sample in read_image_text(folder, seed=seed)) for seed in range(12)}
    assert len(orders) > 3
    for seed in range(3):
        (first,) = read_image_text(folder, seed=seed, sequences=1)
        assert text_of(first) == text_of(next(iter(read_image_text(folder, seed=seed))))


def test_metadata_lines(folder: Path) -> None:
    lines = [{"file_name": "b.png", "text": "second"}, {"file_name": "sub/c.png", "text": ""}]
    write_lines(folder / "metadata.jsonl", *lines)
    samples = read_image_text(folder)
    assert sorted(text_of(sample) for sample in samples) == ["", "second"]
    assert samples.record["notes"] == [
        "1 of 2 images have an empty text",
        "1 images that metadata.jsonl doesn't list were left out",
    ]
    assert [source["name"] for source in samples.record["sources"]] == ["b.png", "metadata.jsonl", "sub/c.png"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Line 2 of metadata.jsonl is not valid JSON"),
        ({"file_name": "b.png"}, "Line 2 of metadata.jsonl has no file_name and text"),
        ([1], "no file_name and text"),
        ({"file_name": "../b.png", "text": ""}, r"names '\.\./b\.png', which leaves the folder"),
        ({"file_name": "/etc/hosts", "text": ""}, "leaves the folder"),
        ({"file_name": "z.png", "text": ""}, r"names the image 'z\.png', which is not there"),
        ({"file_name": "b.png", "text": "\ud800"}, "a lone surrogate"),
    ],
)
def test_wrong_metadata(folder: Path, line: Any, said: str) -> None:
    write_lines(folder / "metadata.jsonl", {"file_name": "a.png", "text": "x"}, line)
    with pytest.raises(CalibrationDataError, match=said):
        read_image_text(folder)


def test_partners(folder: Path) -> None:
    (folder / "d.txt").write_text("alone", encoding="utf-8")
    with pytest.raises(CalibrationDataError, match=r"The text d\.txt has no image"):
        read_image_text(folder)
    Image.fromarray(picture(2, 2)).save(folder / "d.jpg")
    Image.fromarray(picture(2, 2)).save(folder / "d.png")
    with pytest.raises(CalibrationDataError, match=r"d\.jpg and d\.png share one text, d\.txt"):
        read_image_text(folder)
    (folder / "d.png").unlink()
    (folder / "d.txt").unlink()
    with pytest.raises(CalibrationDataError, match=r"The image d\.jpg has no text: write it to d\.txt"):
        read_image_text(folder)


def test_all_alike_and_duplicates(tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(picture(2, 2)).save(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.txt").write_text("same", encoding="utf-8")
    with pytest.raises(CalibrationDataError, match="All 3 calibration samples are identical"):
        list(read_image_text(tmp_path))
    (tmp_path / "1.txt").write_text("other", encoding="utf-8")
    samples = read_image_text(tmp_path, sequences=3)
    assert len(list(samples)) == 2
    assert samples.record["duplicates_dropped"] == 1
    assert samples.record["notes"] == ["3 samples were wanted and 2 are there"]


def test_a_dark_camera(tmp_path: Path) -> None:
    for number in range(2):
        Image.new("RGB", (3, 4), (number, 9, 9)).save(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.txt").write_text("x", encoding="utf-8")
    with pytest.raises(CalibrationDataError, match="image shows a single colour in every sample"):
        list(read_image_text(tmp_path))


def test_modes(tmp_path: Path) -> None:
    """Grey and palette images get three channels, transparency is dropped, EXIF says what is up."""
    pixels = picture(4, 6)
    path = tmp_path / "a.png"
    Image.fromarray(pixels[..., 0]).save(path)
    np.testing.assert_array_equal(decode_image(path, "a"), np.repeat(pixels[..., :1], 3, 2))
    Image.fromarray(np.dstack([pixels, np.zeros((4, 6), np.uint8)])).save(path)
    np.testing.assert_array_equal(decode_image(path, "a"), pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(path, exif=exif)
    np.testing.assert_array_equal(decode_image(path, "a"), np.rot90(pixels, -1))
    flat = np.full((8, 8, 3), 100, np.uint8)
    Image.fromarray(flat).save(tmp_path / "b.jpg", quality=95)
    assert np.abs(decode_image(tmp_path / "b.jpg", "b").astype(int) - 100).max() <= 2


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000).save(tmp_path / "a.png")
    with pytest.raises(CalibrationDataError, match="more than 8 bits a channel"):
        decode_image(tmp_path / "a.png", "a.png")


def bomb(width: int, height: int) -> bytes:
    """A small PNG file that announces a huge image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("width", [MAX_PIXELS // 1000 + 1, 200_000, (1 << 31) - 1])
def test_decompression_bombs(width: int, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(bomb(width, 1000))
    with pytest.raises(CalibrationDataError, match=r"^The image a\.png (announces|can't be decoded)"):
        decode_image(tmp_path / "a.png", "a.png")


def test_broken_files(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(picture(40, 30)).save(buffer, "PNG")
    data = buffer.getvalue()
    gif = io.BytesIO()
    Image.fromarray(picture(4, 3)).save(gif, "GIF")
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 255
    for content in (b"", b"no image", data[:40], data[: len(data) // 2], bytes(damaged), gif.getvalue()):
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(CalibrationDataError, match=r"^The image a\.png can't be decoded") as caught:
            decode_image(tmp_path / "a.png", "a.png")
        assert str(tmp_path) not in str(caught.value)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match="package pillow, which is not installed"):
        list(read_image_text(folder))
