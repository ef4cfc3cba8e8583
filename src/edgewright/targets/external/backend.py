"""The target `external`: stages are compiled by a program of another vendor that a tool file describes."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from edgewright.bundle.manifest import StageEntry
from edgewright.bundle.settings import EngineSettings
from edgewright.contract import TensorContract
from edgewright.errors import ToolError
from edgewright.files import Standing, canonical_json, changed, inside, standing, tool_logs_home
from edgewright.graph.writer import MODEL_FILE, WEIGHTS_FILE
from edgewright.plugins import ENGINES, plugin_names
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.targets.backend import StageWork
from edgewright.targets.external.asked import OPTIONS, Asked, check_programs, last_words, read_options
from edgewright.targets.external.graph import write_graph
from edgewright.targets.external.process import Ended, find_program, run_program
from edgewright.targets.external.products import LOG, RECORD, collect
from edgewright.targets.external.samples import check_given, sample_feeds, write_samples
from edgewright.targets.external.sizes import chosen_sizes, fixed
from edgewright.targets.external.template import Port, Values
from edgewright.targets.platform import Platform

#: The folder of the stage in which the program works; it is gone afterwards.
_WORK = ".engine-work"


class ExternalBackend:
    """Other vendors' compilers, by tool files."""

    name = "external"
    dialect = "onnx-qdq"
    options: Mapping[str, str] = OPTIONS

    def require(self, platform: Platform | None, options: Mapping[str, str]) -> None:
        """Read the tool file and the options, look for the programs, ask for the version. See `Backend.require`."""
        check_programs(read_options(options, platform).tool)

    def compile(self, work: StageWork) -> StageEntry:
        """Compile a stage; see `Backend.compile`. Of the product the same bytes are the program's affair."""
        asked = read_options(work.options, work.platform)
        with _folder(work.folder / _WORK) as place:
            return _Run(work, asked, place).entry()

    def stand_in(self, root: Path, entry: StageEntry, threads: int | None) -> tuple[OnnxRuntimeEngine, str] | None:
        """Return the stage's graph on ONNX Runtime; None where a package brings the engine. See `Backend.stand_in`."""
        if entry.runtime in plugin_names(ENGINES):
            return None
        title = entry.settings.get("title", entry.runtime)
        engine = OnnxRuntimeEngine(inside(root, entry.graph), entry.contract, EngineSettings("all"), threads=threads)
        return engine, (
            f"The product of {title} does not run here: what was run is the graph it was made from, so what {title} "
            "made of it is not checked."
        )


BACKEND = ExternalBackend()


@contextmanager
def _folder(place: Path) -> Iterator[Path]:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Run:
    """One stage on its way through a tool."""

    def __init__(self, work: StageWork, asked: Asked, place: Path) -> None:
        self._work, self._asked, self._place, self._tool = work, asked, place, asked.tool
        self._version = check_programs(asked.tool)
        self._sizes = chosen_sizes(work.folder, asked.tool, work.contract, asked.shapes)
        self._contract = fixed(work.contract, self._sizes)
        self._log: list[str] = []

    def entry(self) -> StageEntry:
        """Compile; returns the manifest's entry."""
        work, tool, place = self._work, self._tool, self._place
        write_graph(work.folder, place, self._sizes, tool)
        kind = self._write_samples()
        values = self._values()
        for name, text in tool.files.items():
            (place / name).write_text(values.filled(text), encoding="utf-8")
        (place / "output").mkdir()
        before = standing(work.root, place)
        commands = [values.words(command) for command in tool.commands]
        environment = {name: values.filled(text) for name, text in tool.environment.items()}
        for argv in commands:
            self._command(argv, environment, before)
        engine = work.folder / "engine"
        engine.mkdir()
        products = self._products(engine)
        log = "".join(self._log).encode()
        (engine / LOG).write_bytes(log)
        arch = values.filled(tool.arch)
        record = {
            "tool": tool.name,
            "title": tool.title,
            "file_sha256": tool.digest,
            "version": self._version,
            "arch": arch,
            "platform": work.platform and work.platform.name,
            "commands": [self._hidden_words(argv) for argv in commands],
            "options": dict(self._asked.options),
            "sizes": self._sizes,
            "samples": {"count": self._asked.samples, "kind": kind, "format": tool.format, "seed": self._asked.seed},
            "products": products,
            "log_sha256": hashlib.sha256(log).hexdigest(),
        }
        (engine / RECORD).write_bytes(canonical_json(record))
        return StageEntry(
            graph=f"{work.prefix}/{MODEL_FILE}",
            dialect=BACKEND.dialect,
            contract=work.contract,
            settings={"title": tool.title, "version": self._version, "arch": arch, "sizes": self._sizes},
            engine=f"{work.prefix}/engine/{products[0]}",
            runtime=tool.runtime,
        )

    def _write_samples(self) -> str:
        """Write calibration data, and compare the graph that was made with the stage's own on the first of them."""
        work, asked = self._work, self._asked
        count = max(asked.samples, 1)
        kind, feeds = sample_feeds(work.root, self._place, work.contract, self._sizes, count, asked.seed)
        first = {name: array.copy() for name, array in next(feeds).items()}
        if (self._place / MODEL_FILE).read_bytes() != (work.folder / MODEL_FILE).read_bytes():
            check_given(work.folder, work.contract, self._sizes, first, self._place)
        if not asked.samples:
            return "none"
        names = {tensor.name: _folder_name(tensor.name) for tensor in self._contract.inputs}
        write_samples(chain([first], feeds), self._place / "calibration", self._tool.format, names)
        return kind

    def _values(self) -> Values:
        work, platform = self._work, self._work.platform
        plain = {
            "model": MODEL_FILE,
            "weights": WEIGHTS_FILE,
            "output": "output",
            "calibration": "calibration",
            "samples": "calibration/samples.txt",
            "work": str(self._place),
            "stage": work.name,
            "platform": platform.name if platform else "",
        }
        ports = {"inputs": _ports(self._contract.inputs), "outputs": _ports(self._contract.outputs)}
        return Values(plain, self._asked.options, self._tool.lists, ports)

    def _command(self, argv: list[str], environment: Mapping[str, str], before: Standing) -> None:
        program = find_program(argv[0], self._tool.title, self._tool.package)
        ended = run_program(
            [program, *argv[1:]],
            self._place,
            # Compilers that know it write this time in the place of the present one.
            environment={"SOURCE_DATE_EPOCH": "0", **environment},
            timeout_s=self._asked.timeout_s,
            limit=self._tool.log_bytes,
        )
        ended = Ended(ended.code, self._hidden(ended.stdout), self._hidden(ended.stderr))
        self._log.append(f"$ {' '.join(self._hidden_words(argv))}\n{_lines(ended.stdout)}{_lines(ended.stderr)}")
        if odd := changed(before, standing(self._work.root, self._place)):
            raise self._failure(
                f"{self._tool.title} changed {odd[0]} of the bundle, which is outside its own folder: correct its "
                "commands"
            )
        if ended.code in self._tool.success:
            return
        how = (
            f"was not done after {self._asked.timeout_s:g} s" if ended.code is None else f"failed ({_code(ended.code)})"
        )
        words = last_words(ended, self._tool.errors)
        raise self._failure(
            f"{self._tool.title} {how} on the stage {self._work.name} and said: {words}"
            if words
            else f"{self._tool.title} {how} on the stage {self._work.name} and said nothing"
        )

    def _products(self, engine: Path) -> list[str]:
        own = (MODEL_FILE, WEIGHTS_FILE, *self._tool.files)
        try:
            return collect(self._place, self._tool.products, own, engine, self._tool.title)
        except ToolError as error:
            raise self._failure(str(error)) from None

    def _failure(self, what: str) -> ToolError:
        """Return the error on a failure; the whole log is kept among what can be made again."""
        place = tool_logs_home() / f"{self._tool.name}-{self._work.name}.log"
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("".join(self._log), encoding="utf-8")
            return ToolError(f"{what}; all it said is in {place}.")
        return ToolError(f"{what}.")

    def _hidden(self, text: str) -> str:
        """Return a text without this machine's folders, and without what the tool file says to hide."""
        for path, word in ((self._place, "WORK"), (self._work.root, "BUNDLE")):
            for spelled in dict.fromkeys((str(path.resolve()), str(path))):
                text = text.replace(spelled, word)
        for pattern in self._tool.hide:
            text = pattern.sub("...", text)
        return text

    def _hidden_words(self, argv: list[str]) -> list[str]:
        return [self._hidden(word) for word in argv]


def _ports(tensors: tuple[TensorContract, ...]) -> tuple[Port, ...]:
    return tuple(Port(t.name, t.dtype, t.shape, f"calibration/{_folder_name(t.name)}") for t in tensors)


def _folder_name(name: str) -> str:
    """Return a folder's name for an input's: names of inputs may have any characters."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _lines(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _code(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
