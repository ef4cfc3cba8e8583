"""Reads case files and registries of models: YAML, or JSON without PyYAML. All mistakes are told at once, with lines.

```yaml
version: 1
name: llm_2vlm
models:
  llm: {bundle: smollm2}
  vlm: {bundle: smollm2-outside, table: "table.bin,uint16,0.000315,-32937"}
dialogs:
  - {name: chat, model: llm, input: {prompt: "Hello"}, max_tokens: 64, weight: 4}
  - {model: vlm, input: {embedding: "inputs_embeds.bin,uint16,0.000315,-32937"}, timeline: "4:0,0:5000"}
scheduler: {discipline: weighted}
run: {repeats: 3}
```

A registry of models has `version`, `models`, and what holds for every case that is made of it: `scheduler`, `run`,
`runner`. Relative paths are relative to the file they stand in.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgewright.bench.case import fields as table
from edgewright.bench.case.problems import Problems
from edgewright.bench.case.spec import (
    Case,
    DialogSpec,
    InputSpec,
    ModelSpec,
    RunnerSpec,
    RunSpec,
    SchedulerSpec,
    SimulatedModel,
)
from edgewright.errors import UsageError
from edgewright.nodes import Node, read_json, read_yaml, shown

VERSION = 1
#: What a case file's name ends in; any other file has use-case lines.
SUFFIXES = (".yaml", ".yml", ".json")
_MOST_BYTES = 16 << 20
_REGISTRY = ("version", "models", "scheduler", "run", "runner")
_CASE = ("version", "name", "models", "dialogs", "scheduler", "run", "runner")


@dataclass(frozen=True)
class Registry:
    """Models by name, and what holds for all cases made of them; `places` says where each model stands."""

    models: Mapping[str, ModelSpec] = field(default_factory=dict)
    scheduler: SchedulerSpec | None = None
    run: RunSpec | None = None
    runner: RunnerSpec | None = None
    source: Path | None = None
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[Path, ...]:
        """The file it was read from, if any."""
        return () if self.source is None else (self.source,)


def read_tree(path: Path, what: str) -> Node:
    """Return the tree of a YAML or JSON file of `what`; raises UsageError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is too large to be a {what}: give a file of a few lines.")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise UsageError(f"The {what} {path} can't be read ({reason}): correct the path, or the file.") from None
    return (read_json if path.suffix.lower() == ".json" else read_yaml)(text, path.name)


def read_registry(path: Path, *, runner: RunnerSpec | None = None) -> Registry:
    """Read a registry of models; raises CaseError with everything that is wrong.

    With a `runner` on another machine, paths stay as they are written: they are that machine's.
    """
    reader = _Reader(path, read_tree(path, "file of models"), _REGISTRY, runner)
    models = reader.models()
    if "models" not in reader.parts:
        reader.problems.add(reader.tree.at, "there are no models: write `models:` with a line for each.")
    registry = Registry(models, reader.scheduler(), reader.run(), reader.runner, path, reader.places)
    reader.problems.raise_any()
    return registry


def read_case(
    path: Path, registry: Registry | None = None, *, iterations: int | None = None, runner: RunnerSpec | None = None
) -> Case:
    """Read a case file; raises CaseError with everything that is wrong with how it is written.

    Models and settings that the file doesn't have are the registry's; `iterations` holds for dialogs that don't say how
    often they are asked. What a case means is for `check.problems`.
    """
    registry = registry or Registry()
    reader = _Reader(path, read_tree(path, "case file"), _CASE, runner, registry.runner)
    own = reader.models()
    models = {**registry.models, **own}
    dialogs = reader.dialogs(models, iterations or 1)
    used = {dialog.model for dialog in dialogs}
    case = Case(
        name=reader.name(path.stem),
        models=tuple(model for model in models.values() if model.name in used or model.name in own),
        dialogs=dialogs,
        scheduler=reader.scheduler() or registry.scheduler or SchedulerSpec(),
        run=reader.run() or registry.run or RunSpec(),
        runner=reader.runner,
        sources=(path, *registry.sources),
        places={
            "case": path.name,
            **registry.places,
            **reader.places,
            **{key: node.at for key, node in reader.parts.items()},
        },
    )
    reader.problems.raise_any()
    return case


def paths_are_elsewhere(runner: RunnerSpec) -> bool:
    """Whether a runner's files are on another machine; raises UsageError for one that can't be used."""
    from edgewright.bench.external.prefix import Prefix

    return Prefix(runner).remote


class _Reader:
    """Reads the parts of a file, notes what is wrong in `problems`, and where things stand in `places`.

    `runner` is what the caller says, else the file's, else `usual`.
    """

    def __init__(
        self,
        path: Path,
        tree: Node,
        keys: tuple[str, ...],
        runner: RunnerSpec | None,
        usual: RunnerSpec | None = None,
    ) -> None:
        self.tree, self.problems, self._folder = tree, Problems(), Path()
        self.places: dict[str, str] = {}
        self.parts = table.known_pairs(tree, keys, self.problems)
        if not tree.is_mapping:
            self.problems.raise_any()
        self._check_version()
        self.runner = runner or self._own_runner() or usual
        elsewhere = self.runner is not None and paths_are_elsewhere(self.runner)
        self._folder = Path() if elsewhere else path.parent

    def name(self, usual: str) -> str:
        """Return the case's name, by default the file's."""
        if "name" in self.parts:
            node = self.parts["name"]
            with self.problems.noted(node.at):
                return str(table.name(node, "name", self._folder, self.problems))
        elif not table.is_name(usual):
            self.problems.add(self.tree.at, table.name_rule("the file's name as the case's", usual))
        return usual

    def scheduler(self) -> SchedulerSpec | None:
        """Return how the accelerator is shared, if the file says it."""
        return SchedulerSpec(**self._section("scheduler", table.SCHEDULER)) if "scheduler" in self.parts else None

    def run(self) -> RunSpec | None:
        """Return how it is run, if the file says it."""
        return RunSpec(**self._section("run", table.RUN)) if "run" in self.parts else None

    def models(self) -> dict[str, ModelSpec]:
        """Return the models by name."""
        models: dict[str, ModelSpec] = {}
        part = self.parts.get("models")
        if part is None:
            return models
        if not part.is_mapping:
            self.problems.add(part.at, "models must be a mapping of names to `{bundle: FOLDER}` and the like.")
        for single in part.singles()[: table.MOST]:
            with self.problems.noted(single.at):
                [(name, node)] = single.entries()
                if name in models:
                    raise single.wrong(f"the model {shown(name)} stands twice.")
                if not table.is_name(name):
                    raise single.wrong(table.name_rule("the model's name", name))
                self.places[f"models.{name}"] = node.at
                values = self._fields(node, {**table.MODEL, "simulated": _simulated})
                models[name] = ModelSpec(name=name, **values)
        if len(part.singles()) > table.MOST:
            self.problems.add(part.at, f"there are more than {table.MOST} models.")
        return models

    def dialogs(self, models: Mapping[str, ModelSpec], iterations: int) -> tuple[DialogSpec, ...]:
        """Return the dialogs, what they leave out being their model's."""
        part = self.parts.get("dialogs")
        if part is None:
            self.problems.add(self.tree.at, "there are no dialogs: write `dialogs:` with a list.")
            return ()
        items: list[Node] = []
        with self.problems.noted(part.at):
            items = part.items("dialogs must be a list of mappings")
            if not 1 <= len(items) <= table.MOST:
                raise part.wrong(f"there must be 1 to {table.MOST} dialogs.")
        dialogs = []
        for index, node in enumerate(items[: table.MOST]):
            dialog = self._dialog(node, models, name=f"D{index}", iterations=iterations)
            if dialog is not None:
                dialogs.append(dialog)
                self.places.setdefault(f"dialogs.{dialog.name}", node.at)
        return tuple(dialogs)

    def _dialog(self, node: Node, models: Mapping[str, ModelSpec], **usual: Any) -> DialogSpec | None:
        values = self._fields(node, {**table.DIALOG, "input": _asked})
        weight = values.pop("weight", None)
        if weight is not None:
            if "timeline" in values:
                self.problems.add(node.at, "the dialog has both a weight and a timeline: keep one.")
            values["timeline"] = weight
        if "model" not in values:
            if node.is_mapping and not node.has("model"):
                self.problems.add(node.at, "the dialog names no model.")
            return None
        if values["model"] not in models:
            self.problems.add(node.at, unknown_model(values["model"], models))
            return None
        return with_defaults(DialogSpec(**{"input": InputSpec(), **usual, **values}), models[values["model"]])

    def _check_version(self) -> None:
        node = self.parts.get("version")
        if node is None:
            self.problems.add(self.tree.at, f"`version: {VERSION}` is missing.")
        elif node.value != VERSION or isinstance(node.value, bool):
            self.problems.add(
                node.at, f"the version {shown(node.value)} is unknown; this program reads version {VERSION}."
            )

    def _own_runner(self) -> RunnerSpec | None:
        node = self.parts.get("runner")
        if node is None:
            return None
        values = self._fields(node, table.RUNNER)
        with self.problems.noted(node.at):
            runner = RunnerSpec(**{"command": (), **values})
            paths_are_elsewhere(runner)  # which refuses what can't be used
            return runner
        return None

    def _section(self, key: str, reads: Mapping[str, table.Read]) -> dict[str, Any]:
        return self._fields(self.parts[key], reads)

    def _fields(self, node: Node, reads: Mapping[str, table.Read]) -> dict[str, Any]:
        return table.read_fields(node, reads, self._folder, self.problems)


def _simulated(node: Node, what: str, folder: Path, problems: Problems) -> SimulatedModel:
    return SimulatedModel(**table.read_fields(node, table.SIMULATED, folder, problems))


def _asked(node: Node, what: str, folder: Path, problems: Problems) -> InputSpec:
    return InputSpec(**table.read_fields(node, table.INPUT, folder, problems))


def unknown_model(name: str, models: Mapping[str, ModelSpec]) -> str:
    """Return the sentence on a model that is not there."""
    near = difflib.get_close_matches(name, models, n=1)
    known = f"did you mean {near[0]}?" if near else f"known are {', '.join(models) or 'none'}."
    return f"there is no model {shown(name)}; {known}"


def with_defaults(dialog: DialogSpec, model: ModelSpec) -> DialogSpec:
    """Return a dialog whose input and `max_tokens` are its model's where it says nothing of its own."""
    asked = dialog.input
    if asked == InputSpec():
        asked = InputSpec(
            prompt=model.prompt,
            prompt_file=model.prompt_file,
            tokens_file=model.tokens_file,
            embedding=model.embedding,
            observation=model.observation,
            prompt_tokens=model.prompt_tokens,
        )
    return replace(dialog, input=asked, max_tokens=dialog.max_tokens or model.max_tokens)
