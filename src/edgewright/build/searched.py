"""A search for a mix of formats as a step from a checkpoint to a recipe file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from edgewright._version import __version__
from edgewright.build.quantized import calibration_samples
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.errors import CalibrationDataError, OutputError, RecipeError
from edgewright.files import os_errors
from edgewright.formats import Array
from edgewright.progress import SILENT, Progress
from edgewright.quant.recipe import Data
from edgewright.quantizer.driver import STAGES
from edgewright.quantizer.search_recipe import recipe_text, summary
from edgewright.quantizer.search_run import Found, Request, search

#: Of as many calibration rows there is one held out, if there are enough.
_HELD_OUT = 4


@dataclass(frozen=True)
class Searched:
    """The written recipe, what was found, and the data it was found on."""

    path: Path
    found: Found
    data: Data
    held_out: int

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values."""
        found = self.found
        return {
            "path": str(self.path),
            "bytes": found.bytes,
            "formats": dict(summary(found)),
            "estimated_kl": found.estimated_kl,
            "measured": found.judgement.to_json(),
            "evaluations": found.evaluations,
            "probing": found.probing,
            "seconds": None if found.seconds is None else {"estimated": found.seconds[0], "measured": found.seconds[1]},
            "check": None if found.check is None else found.check.to_json(),
            "modules": [
                {
                    "module": target.module,
                    "format": found.chosen[decision.name].format.label,
                    "bytes": decision.bytes(found.chosen[decision.name].format) if index == 0 else 0,
                    "kl": found.options[decision.name].kl if index == 0 else 0.0,
                }
                for decision in found.decisions
                for index, target in enumerate(decision.targets)
            ],
            "calibration": {**vars(self.data), "held_out": self.held_out},
        }


def search_recipe(
    source: str | Path,
    output: str | Path,
    request: Request,
    data: Data,
    spelled: Mapping[str, str],
    *,
    force: bool = False,
    progress: Progress = SILENT,
) -> Searched:
    """Search a mix that meets the request's budget and write it as a recipe file.

    The recipe calibrates on the rows the search did; the mix is measured on others. `spelled` is how the request was
    written, for the file's first line. Nothing is left behind unless everything succeeds. Raises the package's errors.
    """
    final = Path(output)
    _check_place(final, force=force)
    checkpoint = open_checkpoint(source)
    if checkpoint.quantization is not None:
        raise RecipeError(
            f"The checkpoint is quantized already ({checkpoint.quantization.method}): search on the original."
        )
    if request.base is not None:
        request = replace(request, base=request.base.for_stage("llm", STAGES))
    rows, held_out = _rows(checkpoint, data, progress)
    data = replace(data, sequences=len(rows))
    found = search(checkpoint, rows, held_out, request, progress=progress)
    text = recipe_text(found, _header(spelled, found, data), request.base, data)
    _write(final, text)
    return Searched(final, found, data, len(held_out))


def _check_place(final: Path, *, force: bool) -> None:
    if final.is_dir() or (final.exists() and not final.is_file()):
        raise OutputError(f"{final.name} exists and is no file: choose another name.")
    if final.exists() and not force:
        raise OutputError(f"{final.name} exists already: remove it, choose another name, or pass --force.")


def _rows(checkpoint: Checkpoint, data: Data, progress: Progress) -> tuple[Sequence[Array], Sequence[Array]]:
    """Return the rows to calibrate on, and others: the data's first are those that a build calibrates on."""
    wanted = data.sequences + -(-data.sequences // _HELD_OUT)
    rows = calibration_samples(checkpoint, replace(data, sequences=wanted), progress).rows
    if len(rows) < 2:
        raise CalibrationDataError(
            "A search needs two sequences or more, one to calibrate on and another to measure on: give more data, or "
            "a smaller --length."
        )
    first = data.sequences if len(rows) == wanted else len(rows) - max(1, len(rows) // (_HELD_OUT + 1))
    return rows[:first], rows[first:]


def _header(spelled: Mapping[str, str], found: Found, data: Data) -> list[str]:
    options = " ".join(f"--{name} {value}" for name, value in spelled.items())
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "onnxruntime"))
    judged = found.judgement
    return [
        f"made by edgewright search {options}",
        f"edgewright {__version__}, {versions}; seed {data.seed}",
        f"weights of {found.bytes:,} bytes; KL {found.estimated_kl:.4g} estimated, {judged.kl:.4g} measured "
        f"(+- {judged.kl_error:.2g}, {judged.positions} held-out positions)",
    ]


def _write(final: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    work = final.with_name(f".{final.name}.partial-{os.getpid()}")
    with os_errors(final.name):
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            with work.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            work.replace(final)
        finally:
            work.unlink(missing_ok=True)
