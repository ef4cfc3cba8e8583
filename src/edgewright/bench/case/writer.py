"""Writes a case as a case file that reads back to an equal case."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from edgewright.bench.case.files import VERSION, paths_are_elsewhere
from edgewright.bench.case.spec import Case, DialogSpec, ModelSpec
from edgewright.runtime.encoding import EmbeddingFile
from edgewright.runtime.scheduling.timeline import Timeline
from edgewright.yaml_text import yaml_text


def to_yaml(case: Case, folder: Path) -> str:
    """Return the text of a case file that is to lie in `folder`.

    Paths inside the folder are written relative to it, all others whole; those of a runner on another machine as they
    are. What has its usual value is left out.
    """
    return yaml_text(case_data(case, folder))


def case_data(case: Case, folder: Path) -> dict[str, Any]:
    """Return the plain values of a case file that is to lie in `folder`."""
    elsewhere = case.runner is not None and paths_are_elsewhere(case.runner)
    spelled = _Spelled(None if elsewhere else folder)
    data: dict[str, Any] = {
        "version": VERSION,
        "name": case.name,
        "models": {model.name: spelled.model(model) for model in case.models},
        "dialogs": [spelled.dialog(index, dialog) for index, dialog in enumerate(case.dialogs)],
        "scheduler": spelled.changed(case.scheduler),
        "run": spelled.changed(case.run),
    }
    if case.runner is not None:
        data["runner"] = spelled.changed(case.runner)
    return {key: value for key, value in data.items() if value != {} or key == "models"}


class _Spelled:
    """Spells the parts of a case; `folder` None keeps paths as they are."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def model(self, model: ModelSpec) -> dict[str, Any]:
        return {key: value for key, value in self.changed(model).items() if key != "name"}

    def dialog(self, index: int, dialog: DialogSpec) -> dict[str, Any]:
        data = self.changed(dialog)
        timeline = data.pop("timeline", None)
        if data["name"] == f"D{index}":
            del data["name"]
        if timeline is not None:
            constant = len(dialog.timeline.changes) == 1
            data |= {"weight": _number(dialog.timeline.at(0))} if constant else {"timeline": timeline}
        return data

    def changed(self, part: Any) -> dict[str, Any]:
        """Return the fields that are not as usual."""
        values = {}
        for field in fields(part):
            value = getattr(part, field.name)
            factory = field.default_factory
            usual = factory() if callable(factory) else field.default
            if value != usual:
                values[field.name] = self.value(value)
        return values

    def value(self, value: Any) -> Any:
        if isinstance(value, Path):
            return self.path(value)
        if isinstance(value, EmbeddingFile):
            path = self.path(value.path)
            # A table of one of these names would be taken for the word.
            path = f"./{path}" if path in ("bundle", "none") else path
            return path + str(value).removeprefix(str(value.path))
        if isinstance(value, Timeline):
            return str(value)
        if isinstance(value, tuple):
            return [self.value(item) for item in value]
        if isinstance(value, str | bool | int | float | dict | None):
            return value
        return self.changed(value)

    def path(self, path: Path) -> str:
        if self._folder is None:
            return str(path)
        if path.is_relative_to(self._folder):
            return str(path.relative_to(self._folder))
        whole, folder = path.absolute(), self._folder.absolute()
        return str(whole.relative_to(folder) if whole.is_relative_to(folder) else whole)


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value
