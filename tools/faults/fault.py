"""A planted fault: where it is, what it is, and how a bundle that has it is made."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from edgewright.build import llm, pipeline
from edgewright.bundle import read_manifest
from edgewright.dialects import LOWERINGS
from edgewright.graph import Stage

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "text"

Change = Callable[[Stage], None]
Edit = Callable[[Path], None]


@dataclass(frozen=True)
class Fault:
    """One fault in a bundle of a golden case.

    `form` is `bundle` (compiled) or `portable` (exported). `kind` is the true cause class, `layer` the true layer or
    None outside the layers, where `module` says the place. `stage` changes the graph before quantization (a mistake in
    a family), `lowered` after lowering (a mistake in a dialect), `files` the finished folder (damage, a compiler).
    """

    case: str
    recipe: str
    form: str
    title: str
    kind: str
    layer: int | None
    module: str = ""
    stage: Change | None = None
    lowered: Change | None = None
    files: Edit | None = None

    @property
    def name(self) -> str:
        """A name that says everything."""
        where = f"layer {self.layer}" if self.layer is not None else self.module
        return f"{self.case} {self.recipe} {self.form}: {self.title}, {where}"

    @property
    def source(self) -> Path:
        """The checkpoint."""
        return GOLDENS / self.case


def make(fault: Fault, folder: Path) -> Path:
    """Write the faulty bundle to `folder`; everything but the fault is as the product makes it."""
    shutil.rmtree(folder, ignore_errors=True)
    with _patched(fault.stage, fault.lowered):
        build(fault.case, fault.recipe, fault.form, folder)
    if fault.files is not None:
        fault.files(folder)
        reseal(folder)
    return folder


def build(case: str, recipe: str, form: str, folder: Path) -> Path:
    """Build a golden case, unverified: a compiled bundle, or an export in the portable dialect."""
    source = GOLDENS / case
    if form == "bundle":
        return pipeline.deploy(source, folder, recipe=recipe, verify=False).path
    return pipeline.export(source, folder, recipe=recipe, dialect=form).path


def reseal(folder: Path) -> None:
    """Give the manifest the digests of what stands there now, so that only the verifier can notice."""
    pipeline._seal(folder, dataclasses.replace(read_manifest(folder), files={}))


@contextlib.contextmanager
def _patched(stage: Change | None, lowered: Change | None) -> Iterator[None]:
    real = llm.build_llm

    def built(*args: object, **kwargs: object) -> Stage:
        made = real(*args, **kwargs)  # type: ignore[arg-type]
        if stage is not None:
            stage(made)
        return made

    def wrapped(lower: Callable[[Stage], Stage]) -> Callable[[Stage], Stage]:
        def run(before: Stage) -> Stage:
            after = lower(before)
            if lowered is not None:
                lowered(after)
            return after

        return run

    lowerings = {name: wrapped(lower) for name, lower in LOWERINGS.items()}
    with mock.patch.object(llm, "build_llm", built), mock.patch.object(llm, "find_lowering", lowerings.__getitem__):
        yield
