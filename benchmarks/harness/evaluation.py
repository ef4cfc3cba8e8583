"""Quality on held-out text: the reference, the calibration data and every contender's figures, kept in .peers/models/.

A window is 512 tokens; the logits of its last 256 are compared, so that each has at least 256 tokens of context. A
record is made anew when what it depends on has changed: the text, the number of windows, the calibration, the recipe.
"""

import hashlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import artefacts
from harness.artefacts import MODELS
from harness.peers import REFERENCE_PEER, ensure
from harness.quality_roster import AS_RUN, Contender
from harness.roster import Entry
from harness.runner import run_worker

WINDOW = 512
SCORED = 256

Record = dict[str, Any]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def digest(file: Path) -> str:
    """Return what a record keeps of a file to know it again."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Setting:
    """A model, `windows` of the held-out text, `samples` of the calibration text, and how to run."""

    model: str
    text: Path
    calibration: Path
    windows: int
    samples: int
    threads: int
    edgewright: Path

    @property
    def folder(self) -> Path:
        return MODELS / self.model

    @property
    def checkpoint(self) -> Path:
        return artefacts.checkpoint(self.model, self.edgewright)

    def reference(self) -> Record:
        """Return the record of the float32 logits, with the paths of ids and logits; made if missing or outdated."""
        files = {"ids": str(self.folder / "heldout-ids.npy"), "reference": str(self.folder / "heldout-logits.npy")}
        key = {"text": digest(self.text), "asked": self.windows, "scored": SCORED}
        job = files | {"windows": self.windows, "scored": SCORED}
        return self._made("reference", "heldout.json", key, job, self.text) | files

    def calibrate(self, importance: bool) -> str:
        """Write the calibration windows, and the importance matrix, beside the checkpoint; return their digest."""
        ids, squares = str(self.folder / "calibration-ids.npy"), str(self.folder / "importance.npz")
        key = {"text": digest(self.calibration), "samples": self.samples}
        job = {"ids": ids, "windows": self.samples}
        self._made("calibration", "calibration.json", key, job, self.calibration)
        if importance:
            self._made("importance", "importance.json", key, {"ids": ids, "importance": squares}, self.calibration)
        return f"{key['text']}-{self.samples}"

    def _made(self, mode: str, name: str, key: Record, job: Record, text: Path) -> Record:
        """Return the record `name`, made by the reference's worker in `mode` if missing or of another key."""
        record = self.folder / name
        if record.exists() and (known := json.loads(record.read_text()))["key"] == key:
            return known
        job = job | {"peer": "reference", "path": str(self.checkpoint), "text": str(text)}
        record.unlink(missing_ok=True)
        _say(f"{mode} of {self.model} on {text.name}")
        python = ensure(REFERENCE_PEER, self.edgewright)
        known = run_worker(python, mode, job | {"threads": self.threads, "capacity": 0}) | {"key": key}
        record.write_text(json.dumps(known, indent=1))
        return known

    def prepare(self, contender: Contender) -> Path:
        """Return the folder with the contender's weights, made if missing or outdated."""
        if contender.bundle is not None:
            return contender.bundle
        entry = contender.entry
        if contender.calibrated:
            entry = replace(entry, recipe=entry.recipe | {"calibration": self.calibrate("imatrix" in entry.recipe)})
        return artefacts.prepared(self.model, entry, self.edgewright)

    def contents(self, contender: Contender) -> Record:
        """Return the bytes and the types of the contender's weight file."""
        folder = self.prepare(contender)
        python = ensure(contender.entry.peer, self.edgewright)
        result = run_worker(python, "contents", {"peer": contender.entry.peer, "path": str(folder)})
        return {"bytes": result["bytes"], "types": result["types"]}

    def measure(self, contender: Contender, mode: str) -> Record | None:
        """Return the contender's distance to the reference, None when it has no such mode."""
        if (entry := self._in_mode(contender, mode)) is None:
            return None
        folder, known = self.prepare(contender), self.reference()
        stamp = (folder / "manifest.json") if contender.entry.peer == "edgewright" else self._record_of(contender)
        key = known["key"] | {"weights": digest(stamp)}
        record = self.folder / f"{contender.entry.peer}-{contender.entry.weights}.heldout-{mode}.json"
        if record.exists() and (found := json.loads(record.read_text()))["key"] == key:
            return found
        _say(f"measuring {contender.name} of {self.model}, {mode}")
        job = {"ids": known["ids"], "reference": known["reference"], "path": str(folder), "capacity": WINDOW}
        job |= {"peer": entry.peer, "options": entry.options, "threads": self.threads}
        found = run_worker(ensure(entry.peer, self.edgewright), "quality", job) | {"key": key}
        record.write_text(json.dumps(found, indent=1))
        return found

    def _record_of(self, contender: Contender) -> Path:
        return self.folder / f"{contender.entry.peer}-{contender.entry.weights}.json"

    def _in_mode(self, contender: Contender, mode: str) -> Entry | None:
        if mode == AS_RUN:
            return contender.entry
        if contender.entry.peer == "llama_cpp":  # its weights in the reference's graph
            return replace(contender.entry, peer="reference", options={"checkpoint": str(self.checkpoint)})
        if contender.entry.peer == "openvino_genai":
            return replace(contender.entry, options={"float": True})
        return None
