"""Frames of cameras: images decoded with Pillow, videos decoded with PyAV, both as uint8 [height, width, 3]."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.text import shown
from edgewright.errors import DatasetError, first_line
from edgewright.evaluate.tables import needed

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

Image = npt.NDArray[np.uint8]
#: A picture with more pixels is refused before it is decoded: a small file can announce a huge one.
MAX_PIXELS = 64_000_000
#: How far ahead a wanted frame may be to be reached by decoding on, in seconds; beyond, the file is searched.
_NEAR_S = 2.0
#: How far from the wanted time a frame may be, in frame periods.
_TOLERANCE = 0.25


def decoded(data: bytes, what: str) -> Image:
    """Return the pixels of a PNG or JPEG file's bytes; gray is repeated, transparency dropped.

    Raises DatasetError, which calls the image `what`, when it is damaged, too large or has 16 bits a channel.
    """
    try:
        import PIL.Image
    except ImportError:
        raise needed("pillow") from None
    try:
        with PIL.Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            _check_pixels(image.width, image.height, what)
            if image.mode.startswith(("I", "F")):
                raise DatasetError(f"{what} has more than 8 bits a channel ({image.mode}): depth images aren't read.")
            return np.asarray(image.convert("RGB"), np.uint8)
    except (OSError, ValueError, SyntaxError, OverflowError, PIL.Image.DecompressionBombError) as error:
        raise DatasetError(
            f"{what} can't be decoded ({shown(first_line(error))}): PNG and JPEG are read, download the dataset again."
        ) from None


def _check_pixels(width: int, height: int, what: str) -> None:
    if width * height > MAX_PIXELS or width * height < 1:
        raise DatasetError(f"{what} announces {width} x {height} pixels, and at most {MAX_PIXELS:,} are decoded.")


class Video:
    """A video file from which frames are taken by their time, forward from one to the next.

    `name` is its path in the dataset, `fps` the dataset's frames per second. Holds one decoded frame. Raises
    DatasetError when the file is damaged or holds no frame at a time that is wanted.
    """

    def __init__(self, path: Path, name: str, fps: float) -> None:
        try:
            import av
        except ImportError:
            raise needed("av") from None
        self.name = name
        self._fps = fps
        self._errors: tuple[type[Exception], ...] = (av.FFmpegError, OSError, ValueError, EOFError)
        self._container: InputContainer | None = None
        try:
            self._container = av.open(str(path))
            if not self._container.streams.video:
                raise DatasetError(f"{name} holds no video: download the dataset again.")
            self._stream: VideoStream = self._container.streams.video[0]
            if self._stream.codec_context is None:
                raise DatasetError(f"{name} has a video in a format that isn't known: download the dataset again.")
            _check_pixels(self._stream.width, self._stream.height, name)
        except self._errors as error:
            raise self._damaged(error) from None
        self._frames: Iterator[Any] = iter(())
        self._last: tuple[float, Image] | None = None
        self._ahead: tuple[float, Any] | None = None

    def close(self) -> None:
        """Close the file."""
        if self._container is not None:
            self._container.close()

    def at(self, seconds: float) -> Image:
        """Return the frame at a time of the file, at most a quarter of a frame period away."""
        tolerance = _TOLERANCE / self._fps
        if self._last is not None and abs(self._last[0] - seconds) <= tolerance:
            return self._last[1]
        try:
            found = self._seek(seconds, tolerance)
        except self._errors as error:
            raise self._damaged(error) from None
        if found is None:
            raise DatasetError(
                f"{self.name} has no frame at {seconds:.4f} s, to a quarter of a frame: the video and its table don't "
                "fit each other."
            )
        time, frame = found
        _check_pixels(frame.width, frame.height, self.name)
        self._last = (time, frame.to_ndarray(format="rgb24"))
        return self._last[1]

    def _seek(self, seconds: float, tolerance: float) -> tuple[float, Any] | None:
        """Return the first frame not earlier than wanted, if it is close enough."""
        assert self._container is not None
        reached = None if self._last is None else self._last[0]
        if reached is None or not 0 < seconds - reached <= _NEAR_S:
            base = float(self._stream.time_base or 1)
            self._container.seek(max(0, round((seconds - tolerance) / base) - 1), stream=self._stream)
            self._frames, self._ahead = iter(self._container.decode(self._stream)), None
        while True:
            if self._ahead is None:
                frame = next(self._frames, None)
                if frame is None:
                    return None
                if frame.pts is None:
                    continue
                self._ahead = (float(frame.pts * frame.time_base), frame)
            if self._ahead[0] > seconds + tolerance:
                return None
            here, self._ahead = self._ahead, None
            if here[0] >= seconds - tolerance:
                return here

    def _damaged(self, error: Exception) -> DatasetError:
        reason = shown(getattr(error, "strerror", None) or first_line(error))  # without the path of this machine
        return DatasetError(f"{self.name} can't be decoded as a video ({reason}): download the dataset again.")
