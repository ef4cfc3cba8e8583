"""Parquet tables of a dataset: numbers and images of some rows, in portions, so that memory follows the rows wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.checkpoint.text import shown
from edgewright.errors import DatasetError, MissingExtraError, first_line
from edgewright.evaluate.info import INFO, NUMBERS, Feature

#: Rows of numbers, and of images, that are decoded at once.
_ROWS, _PICTURES = 4096, 8
#: Rows of a file that are believed; LeRobot's files have some 100 MB.
_MOST_ROWS = 1 << 27
#: Largest encoded image that is read.
MAX_IMAGE_BYTES = 64 << 20
EPISODE = "episode_index"


def needed(package: str) -> MissingExtraError:
    """Return the error for a package of the extra `evaluate` that is not installed."""
    return MissingExtraError(
        f"Datasets are read with the package {package}, which is missing: pip install 'edgewright[host,evaluate]'."
    )


@contextmanager
def _arrow_errors(name: str) -> Iterator[None]:
    """Turn what pyarrow says about a damaged file into a DatasetError that names it."""
    try:
        import pyarrow as pa
    except ImportError:
        raise needed("pyarrow") from None
    try:
        yield
    except DatasetError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DatasetError(
            f"{name} can't be read as parquet ({shown(first_line(error))}): download the dataset again."
        ) from None


class Table:
    """One parquet file: `name` is its path in the dataset, for messages, `columns` their names, `rows` their number.

    Raises DatasetError when it is damaged.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        with _arrow_errors(name):
            import pyarrow.parquet as pq

            self._file = pq.ParquetFile(path, page_checksum_verification=True, buffer_size=1 << 20)
            self._metadata = self._file.metadata
            self._schema = self._file.schema_arrow
            self.columns = tuple(self._schema.names)
            self.rows = int(self._metadata.num_rows)
            sizes = [self._metadata.row_group(index).num_rows for index in range(self._metadata.num_row_groups)]
        if not 0 <= self.rows <= _MOST_ROWS or min(sizes, default=0) < 0 or sum(sizes) != self.rows:
            raise DatasetError(f"{name} announces {self.rows:,} rows: that can't be right, download the dataset again.")
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._episodes: npt.NDArray[np.int64] | None = None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def require(self, names: Sequence[str]) -> None:
        """Raise DatasetError that lists the columns that aren't there."""
        if lacking := [name for name in names if name not in self.columns]:
            raise DatasetError(
                f"{self.name} lacks the columns {', '.join(lacking)} (it has {shown(', '.join(self.columns))}): "
                "the dataset's description and its tables don't fit each other."
            )

    def records(self, names: Sequence[str]) -> Mapping[str, list[Any]]:
        """Return whole columns as Python values."""
        self.require(names)
        with _arrow_errors(self.name):
            table = self._file.read(columns=list(names))
            return {name: table.column(name).to_pylist() for name in names}

    def text_columns(self) -> list[str]:
        """Return the names of the columns that hold text."""
        return [field.name for field in self._schema if str(field.type) in ("string", "large_string", "string_view")]

    def rows_of(self, episode: int, length: int) -> range:
        """Return the rows of an episode; raises DatasetError unless they are `length` rows one after another."""
        if self._episodes is None:
            feature = Feature(EPISODE, "int64", (1,), ())
            self._episodes = self.numbers(feature, range(self.rows), np.int64)[:, 0]
        found = np.flatnonzero(self._episodes == episode)
        if len(found) != length or (len(found) and found[-1] - found[0] + 1 != len(found)):
            raise DatasetError(
                f"{self.name} has {len(found)} rows of episode {episode} and its description says {length} in a row: "
                "download the dataset again."
            )
        return range(int(found[0]), int(found[-1]) + 1) if length else range(0)

    def numbers(self, feature: Feature, rows: range, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """Return a feature of some rows, [rows, numbers of a frame] in `dtype`.

        Raises DatasetError for a column of another kind or length than the feature, and for missing values.
        """
        self.require([feature.name])
        if feature.dtype not in NUMBERS:
            raise DatasetError(f"The feature {feature.name} is of {feature.dtype}, and numbers are needed.")
        result = np.empty((len(rows), feature.size), dtype)
        if not len(rows):
            return result
        groups, first = self._groups(rows)
        with _arrow_errors(self.name):
            self._check_counts(feature, groups)
            at = first
            for batch in self._file.iter_batches(_ROWS, row_groups=groups, columns=[feature.name]):
                start, stop = max(rows.start, at), min(rows.stop, at + batch.num_rows)
                if start < stop:
                    part = batch.column(0).slice(start - at, stop - start)
                    result[start - rows.start : stop - rows.start] = self._flat(feature, part)
                at += batch.num_rows
                if at >= rows.stop:
                    break
        return result

    def group_start(self, row: int) -> int:
        """Return the first row of the row group that holds a row."""
        return int(self._starts[np.searchsorted(self._starts, row, side="right") - 1])

    def _groups(self, rows: range) -> tuple[list[int], int]:
        """Return the row groups that hold some rows, and the row that the first begins with."""
        low = int(np.searchsorted(self._starts, rows.start, side="right")) - 1
        high = int(np.searchsorted(self._starts, rows.stop, side="left"))
        return list(range(low, high)), int(self._starts[low])

    def _check_counts(self, feature: Feature, groups: Sequence[int]) -> None:
        """Raise DatasetError when a column announces other counts than rows times numbers: it is not decoded then."""
        for group in groups:
            part = self._metadata.row_group(group)
            for index in range(part.num_columns):
                column = part.column(index)
                if column.path_in_schema.split(".")[0] == feature.name and (
                    column.num_values != part.num_rows * feature.size
                ):
                    raise self._wrong_length(feature)

    def _wrong_length(self, feature: Feature) -> DatasetError:
        return DatasetError(
            f"{self.name} has rows of {feature.name} that are not of {feature.size} numbers as the shape "
            f"{list(feature.shape)} of {INFO} says: download the dataset again."
        )

    def _flat(self, feature: Feature, part: Any) -> npt.NDArray[Any]:
        """Return a column's rows as [rows, numbers]; lists of lists are joined."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = len(part)
        while True:
            if part.null_count:
                raise DatasetError(f"{self.name} has rows without a value of {feature.name}: repair the dataset.")
            if isinstance(part.type, pa.ExtensionType):
                part = part.storage
                continue
            if not (pa.types.is_list(part.type) or pa.types.is_large_list(part.type)
                    or pa.types.is_fixed_size_list(part.type)):  # fmt: skip
                break
            lengths = pc.min_max(pc.list_value_length(part))
            if lengths["min"] != lengths["max"]:
                raise self._wrong_length(feature)
            part = part.flatten()
        if len(part) != rows * feature.size:
            raise self._wrong_length(feature)
        if not (pa.types.is_integer(part.type) or pa.types.is_floating(part.type) or pa.types.is_boolean(part.type)):
            raise DatasetError(f"{self.name} has {feature.name} as {part.type}, and numbers are needed.")
        values: npt.NDArray[Any] = part.to_numpy(zero_copy_only=False)
        return values.reshape(rows, feature.size)

    def pictures(self, name: str, rows: range) -> Iterator[tuple[int, bytes | str]]:
        """Yield (row, encoded image or the path of an image file) of some rows of an image column, in order."""
        self.require([name])
        groups, at = self._groups(rows)
        with _arrow_errors(self.name):
            for batch in self._file.iter_batches(_PICTURES, row_groups=groups, columns=[name]):
                if at + batch.num_rows > rows.start:
                    for index in range(max(0, rows.start - at), min(batch.num_rows, rows.stop - at)):
                        yield at + index, self._picture(name, batch.column(0)[index].as_py())
                at += batch.num_rows
                if at >= rows.stop:
                    return

    def _picture(self, name: str, value: Any) -> bytes | str:
        if isinstance(value, dict):
            value = value.get("bytes") if value.get("bytes") is not None else value.get("path")
        if not isinstance(value, bytes | str):
            raise DatasetError(f"{self.name} has a frame without an image of {name}: repair the dataset.")
        if len(value) > MAX_IMAGE_BYTES:
            raise DatasetError(f"{self.name} has an image of {name} of {len(value):,} bytes: make it smaller.")
        return value
