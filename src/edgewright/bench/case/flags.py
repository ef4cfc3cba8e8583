"""Makes a case of the options of genie-t2t-run: every rule of the program, and what it takes in silence refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from edgewright.bench.case.fields import MOST, command_words, is_name
from edgewright.bench.case.files import Registry, paths_are_elsewhere, read_registry, with_defaults
from edgewright.bench.case.genie_model import GenieDefaults, genie_defaults
from edgewright.bench.case.options import ALL, INPUTS, PASSED
from edgewright.bench.case.sharing import count_of, sharing
from edgewright.bench.case.spec import (
    Case,
    DialogSpec,
    InputSpec,
    ModelSpec,
    Requantize,
    RunnerSpec,
    RunSpec,
)
from edgewright.bench.case.words import Words, parse_words
from edgewright.errors import GenieError, UsageError
from edgewright.runtime.encoding import EmbeddingFile

_PROMPT_FILES = "--concurrent-prompt_file"
_LEVELS = ("error", "warn", "info", "verbose")
#: The ways of asking the first dialog, in the order the program looks at them.
_FIRST = ("--embedding_file", "--tokens_file", "--prompt", "--prompt_file")


def parse_flags(words: Sequence[str]) -> Words:
    """Return what a command line says, after the rules on which options go together; raises UsageError."""
    found = parse_words(words, ALL)
    if "--help" not in found.values:
        _check_first(found)
        _check_others(found)
        _check_values(found)
    return found


def case_of(words: Words, registry: Registry | None = None, *, name: str = "genie-t2t-run") -> Case:
    """Return the case that a command line asks for; raises UsageError.

    Without weights and priorities all dialogs have the same weight. There is no warm-up and no solo run, as the program
    has none, unless the registry says how cases are run.
    """
    registry = registry or Registry()
    runner = _runner(words, registry)
    configs = [words.values["--config"], *(value for option, value in words.each if option == "--concurrent-config")]
    inputs = [_first_input(words), *((INPUTS[option], value) for option, value in words.each if option in INPUTS)]
    asked = [_input(option, value) for option, value in inputs]
    table = words.values.get("--embedding_table")
    models = _Models(registry, runner, None if table is None else EmbeddingFile.parse(table))
    chosen = [models.add(config, fed=one.embedding is not None) for config, one in zip(configs, asked, strict=True)]
    share = sharing(
        len(asked),
        stride=words.values.get("--concurrent-stride"),
        timelines=words.strides,
        priorities=words.values.get("--concurrent-priorities"),
        priority=words.values.get("--priority"),
    )
    most = words.values.get("--max-tokens")
    dialogs = []
    for index, (one, (model, defaults)) in enumerate(zip(asked, chosen, strict=True)):
        dialog = DialogSpec(
            name=f"D{index}",
            model=model,
            input=one,
            iterations=count_of("--iterations", words.values.get("--iterations", "1")),
            max_tokens=defaults.max_tokens if most is None else count_of("--max-tokens", most),
            timeline=share.timelines[index],
            priority=share.priorities[index],
            sampling=dict(defaults.sampling),
            stop=defaults.stop,
            requantize="legacy-truncate" if words.values.get("--requantize") == "legacy-truncate" else "round",
        )
        dialogs.append(with_defaults(dialog, models.found[model]))
    return Case(
        name=name,
        models=tuple(models.found.values()),
        dialogs=tuple(dialogs),
        scheduler=share.scheduler(registry.scheduler),
        run=_run(words, registry),
        runner=runner,
        sources=registry.sources,
        places={
            "case": "the command line",
            **{f"dialogs.D{index}": f"D{index} ({config})" for index, config in enumerate(configs)},
        },
    )


def _check_first(words: Words) -> None:
    """Check the first dialog's options, in the program's order."""
    given = [option for option in _FIRST if option in words.values]
    if "--config" not in words.values:
        raise UsageError("The first dialog has no model: give -c with a Genie dialog configuration or a bundle.")
    if "--embedding_file" in given and len(given) > 1:
        raise UsageError(f"--embedding_file and {given[1]} both say what the first dialog is asked: keep one of them.")
    fed = "--embedding_file" in given or any(option == "--concurrent-embed" for option, _ in words.each)
    if "--embedding_table" in words.values and not fed:
        others = " or --concurrent-embed" if "--concurrent" in words.values else ""
        raise UsageError(
            f"--embedding_table is for dialogs fed with embeddings: give them with --embedding_file{others}."
        )
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} both say what the first dialog is asked: keep one of them.")
    if not given:
        raise UsageError(f"The first dialog has no input: give one of {', '.join(_FIRST)}.")
    if words.values.get("--prompt") == "":
        raise UsageError("--prompt is empty, and no dialog can be asked nothing: give a text.")


def _check_others(words: Words) -> None:
    """Check the options of the concurrent mode."""
    numbered = [f"--concurrent-stride{index}" for index in sorted(words.strides)]
    single = [name for name in ("--concurrent-stride", "--concurrent-priorities") if name in words.values]
    used = [*(name for name, _ in words.each), *single, *numbered]
    if used and "--concurrent" not in words.values:
        raise UsageError(f"{used[0]} is an option of several dialogs at once: give --concurrent, too.")
    configs = sum(option == "--concurrent-config" for option, _ in words.each)
    inputs = len(words.each) - configs
    if configs != inputs:
        raise UsageError(
            f"There are {configs} --concurrent-config and {inputs} inputs for them ({', '.join(INPUTS)}): the numbers "
            "must be equal; pairs are made in the order of appearance."
        )
    if configs >= MOST:
        raise UsageError(f"There are {configs + 1} dialogs, and a case has {MOST} at most.")
    if any(option == "--concurrent-prompt" and not value for option, value in words.each):
        raise UsageError("--concurrent-prompt is empty, and no dialog can be asked nothing: give a text.")


def _check_values(words: Words) -> None:
    for option, allowed in (
        ("--log", _LEVELS),
        ("--requantize", get_args(Requantize)),
        ("--embedding_query_output_type", ("text", "token") if "--runner" in words.values else ("text",)),
    ):
        value = words.values.get(option)
        if value is not None and value not in allowed:
            raise UsageError(f"Invalid parameter for argument: {option}: {value!r} is none of {', '.join(allowed)}.")
    name = words.values.get("--run-id")
    if name is not None and not is_name(name):
        raise UsageError(f"Invalid parameter for argument: --run-id: {name!r} can't be a folder's name.")


def registry_of(words: Words) -> Registry | None:
    """Return the registry of models that a command line names, None where it names none; raises UsageError.

    With a runner on another machine its paths are that machine's.
    """
    models, text = words.values.get("--models"), words.values.get("--runner")
    if models is None:
        return None
    runner = None if text is None else RunnerSpec(command=command_words(text, "--runner"))
    return read_registry(Path(models), runner=runner)


def refuse_profile(words: Words) -> None:
    """Raise UsageError when the profile can't be a file there, or exists already and is not to be overwritten."""
    profile = words.values.get("--profile")
    if profile is None:
        return
    if not profile or Path(profile).is_dir() or not Path(profile).parent.is_dir():
        raise UsageError(f"Invalid --profile argument. {profile!r} is no file in a folder that exists: correct it.")
    if Path(profile).exists() and "--overwrite" not in words.values:
        raise UsageError(
            f"Invalid --profile argument. Output file {profile} already exists: choose another name, or pass "
            "--overwrite."
        )


def _runner(words: Words, registry: Registry) -> RunnerSpec | None:
    """Return the external program, with the words that it gets as they are; refuse them where there is none."""
    text = words.values.get("--runner")
    runner = registry.runner if text is None else RunnerSpec(command=command_words(text, "--runner"))
    if runner is None:
        for option in ALL:
            if option.name in words.refused:
                raise UsageError(f"{option.name} is not done here: {option.help}, or run the program with --runner.")
        return None
    passed = [word for refused in words.refused.values() for word in refused]
    for name in PASSED:
        if name in words.values:
            passed += [name, words.values[name]] if words.values[name] else [name]
    prompts = any(option == _PROMPT_FILES for option, _ in words.each)
    flag = _PROMPT_FILES if prompts and runner.prompt_flag is None else runner.prompt_flag
    return replace(runner, flags=(*runner.flags, *passed), prompt_flag=flag)


def _run(words: Words, registry: Registry) -> RunSpec:
    run = registry.run or RunSpec(warmup=0, solo=False)
    threads = words.values.get("--threads")
    return run if threads is None else replace(run, threads=count_of("--threads", threads))


def _first_input(words: Words) -> tuple[str, str]:
    return next((option, words.values[option]) for option in _FIRST if option in words.values)


def _input(option: str, value: str) -> InputSpec:
    if option == "--embedding_file":
        return InputSpec(embedding=EmbeddingFile.parse(value))
    if option == "--prompt":
        return InputSpec(prompt=value)
    if option == "--prompt_file":
        return InputSpec(prompt_file=Path(value))
    return InputSpec(tokens_file=Path(value))


@dataclass
class _Models:
    """The models of a command line, one for each configuration."""

    registry: Registry
    runner: RunnerSpec | None
    table: EmbeddingFile | None

    def __post_init__(self) -> None:
        self.found: dict[str, ModelSpec] = {}
        self._names: dict[str, str] = {}
        self._defaults: dict[str, GenieDefaults] = {}

    def add(self, config: str, *, fed: bool) -> tuple[str, GenieDefaults]:
        """Return the name of a configuration's model and what its file says; `fed` with embeddings it needs a table."""
        if config not in self._names:
            model = self._of(Path(config))
            self._names[config] = model.name
            self.found[model.name] = model
            self._defaults[config] = GenieDefaults() if self.runner or model.genie is None else _said(model.genie)
        name, defaults = self._names[config], self._defaults[config]
        if fed and self.table is not None:
            self.found[name] = replace(self.found[name], table=self.table)
        elif fed and self.runner is None and name not in self.registry.models:
            self.found[name] = replace(self.found[name], table=defaults.table or "none")
        return name, defaults

    def _of(self, config: Path) -> ModelSpec:
        for model in self.registry.models.values():
            if any(path is not None and _same(path, config) for path in (model.genie, model.bundle)):
                return model
        name = self._free_name(config)
        if self.runner is not None and paths_are_elsewhere(self.runner):
            return ModelSpec(name=name, genie=config)
        if config.is_dir():
            return ModelSpec(name=name, bundle=config)
        beside = (config.parent / "manifest.json").is_file()
        return ModelSpec(name=name, genie=config, bundle=config.parent if beside else None)

    def _free_name(self, config: Path) -> str:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", config.stem).strip("-._") or "model"
        taken = {*self.found, *self.registry.models}
        names = [stem[:60], *(f"{stem[:56]}-{number}" for number in range(2, len(taken) + 3))]
        return next(name for name in names if name not in taken)


def _said(path: Path) -> GenieDefaults:
    """Return what a configuration says; raises UsageError, since a command line with a wrong one is wrong."""
    try:
        return genie_defaults(path)
    except GenieError as error:
        raise UsageError(str(error)) from None


def _same(one: Path, other: Path) -> bool:
    return one == other or one.resolve() == other.resolve()
