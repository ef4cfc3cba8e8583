"""A bench of stand-ins: configurations of dialogs, their inputs, and runners that reach the program in several ways."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgewright.bench.case.spec import Case, DialogSpec, InputSpec, ModelSpec, RunnerSpec, RunSpec, SchedulerSpec
from edgewright.runtime.encoding import EmbeddingFile
from edgewright.runtime.scheduling.timeline import Timeline

HERE = Path(__file__).parent
STAND_IN = (sys.executable, "-I", "-S", str(HERE / "stand_in.py"))
ENCODING = "uint16,0.00031563572701998055,-32937"
#: Rows of 8 values of 2 bytes.
ROW_BYTES = 16


@dataclass
class Desk:
    """A folder that is the device's and this machine's at once."""

    folder: Path

    def __post_init__(self) -> None:
        self.device = self.folder / "device"
        self.device.mkdir()
        (self.folder / "prompt.txt").write_text("one two three\n")
        (self.folder / "embeds.bin").write_bytes(bytes(5 * ROW_BYTES))
        (self.folder / "table.bin").write_bytes(bytes(11 * ROW_BYTES))

    def config(self, name: str = "llm.json", **stand_in: Any) -> Path:
        """Write a dialog configuration and what the stand-in is to do with it."""
        path = self.folder / name
        dialog = {"version": 1, "type": "basic", "embedding": {"version": 1, "size": 8}}
        path.write_text(json.dumps({"dialog": dialog, "stand-in": stand_in}))
        return path

    def llm(self, name: str = "llm", **stand_in: Any) -> ModelSpec:
        return ModelSpec(name=name, genie=self.config(f"{name}.json", **stand_in))

    def vlm(self, name: str = "vlm", **stand_in: Any) -> ModelSpec:
        table = EmbeddingFile.parse(f"{self.folder / 'table.bin'},{ENCODING}")
        return ModelSpec(name=name, genie=self.config(f"{name}.json", **stand_in), table=table)

    @property
    def text(self) -> InputSpec:
        return InputSpec(prompt_file=self.folder / "prompt.txt")

    @property
    def embedding(self) -> InputSpec:
        return InputSpec(embedding=EmbeddingFile.parse(f"{self.folder / 'embeds.bin'},{ENCODING}"))

    def case(self, *models: ModelSpec, iterations: int = 1, weights: str = "1", **run: Any) -> Case:
        """Return a case with a dialog for each model: text where it has no table, embeddings where it has one."""
        dialogs = tuple(
            DialogSpec(
                name=f"D{n}",
                model=model.name,
                input=self.text if model.table == "bundle" else self.embedding,
                iterations=iterations,
                timeline=Timeline.constant(float(weights.split(",")[n % len(weights.split(","))])),
            )
            for n, model in enumerate(models)
        )
        plain: dict[str, Any] = {"warmup": 0, "solo": False}
        return Case(
            name="case",
            models=tuple(dict.fromkeys(models)),
            dialogs=dialogs,
            scheduler=SchedulerSpec(),
            run=RunSpec(**{**plain, **run}),
        )

    def tool(self, name: str) -> str:
        """Return the path of a stand-in for `adb` or `ssh`."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            text = (HERE / "device.py").read_text(encoding="utf-8")
            path.write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
            path.chmod(0o755)
        return str(path)

    def adb(self, **fields: Any) -> RunnerSpec:
        return RunnerSpec(
            command=(self.tool("adb"), "-s", "serial", "shell", *STAND_IN),
            **{"profile_dir": str(self.device), **fields},
        )

    def ssh(self, **fields: Any) -> RunnerSpec:
        return RunnerSpec(
            command=(self.tool("ssh"), "-p", "2222", "me@board", *STAND_IN),
            **{"profile_dir": str(self.device), **fields},
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    assert shutil.which("sh"), "the stand-ins of adb and ssh need sh"
    return Desk(tmp_path)


@pytest.fixture
def out(desk: Desk) -> Path:
    return desk.folder / "out"


def local(**fields: Any) -> RunnerSpec:
    """Return the runner that starts the stand-in here."""
    return RunnerSpec(command=STAND_IN, **fields)


def runners(desk: Desk, process: Any = "run") -> dict[str, RunnerSpec]:
    return {"local": local(process=process), "adb": desk.adb(process=process), "ssh": desk.ssh(process=process)}


def three(desk: Desk, **run: Any) -> Case:
    """A text dialog and two that are fed with embeddings; 3, 4 and 5 tokens."""
    models = desk.llm(tokens=3), desk.vlm("vlm", tokens=4), desk.vlm("other", tokens=5)
    return desk.case(*models, iterations=2, weights="4,2,1", **run)


def jobs_of(folder: Path, part: str = "run") -> list[dict[str, Any]]:
    """Return the rows of a run folder's jobs."""
    rows = [json.loads(line) for line in (folder / "jobs.jsonl").read_text().splitlines()]
    return [row for row in rows if row["part"] == part]


def states_of(folder: Path) -> dict[str, str]:
    """Return the state of each execution by its name."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return {event["name"]: event["state"] for event in events if event["event"] == "execution"}
