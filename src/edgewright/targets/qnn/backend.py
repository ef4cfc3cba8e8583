"""The QNN back end: from a stage in the qnn dialect to context binaries for a chip, and a Genie folder around them."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx

from edgewright.bundle.machine import Machine
from edgewright.bundle.manifest import StageEntry
from edgewright.contract import StageContract
from edgewright.dialects.qnn_graph import IDS, StaticGraph
from edgewright.dialects.qnn_static import spell
from edgewright.errors import MissingExtraError, UnsupportedFormatError
from edgewright.files import canonical_json, require_space
from edgewright.graph.writer import MODEL_FILE, WEIGHTS_FILE
from edgewright.runtime.engines.qnn import PROMPT, TOKEN, Encoding, QnnEngine, chip_options, open_graphs, simulates
from edgewright.targets.backend import StageWork
from edgewright.targets.qnn.calibrate import calibration_ids, ranges_of, read_text
from edgewright.targets.qnn.compiler import make_contexts
from edgewright.targets.qnn.encodings import encodings_of
from edgewright.targets.qnn.genie import read_model_config, write_genie
from edgewright.targets.qnn.graphs import WeightFile, model_of
from edgewright.targets.qnn.options import OPTIONS, Asked, asked, sizes
from edgewright.targets.qnn.split import crossing, cuts_of, parts_of
from edgewright.targets.qnn.weights import Weights

if TYPE_CHECKING:
    from edgewright.targets.platform import Platform

#: A stage's engine: its description, its graphs in codes, tables of rotation, and the folder that a device gets.
ENGINE, DESCRIPTION, GRAPHS, TABLES, GENIE = "engine", "metadata.json", "graphs", "tables", "genie"
_PACKAGE = "onnxruntime-qnn"
_UNCHECKED = (
    "the graphs in codes were run in the HTP's simulator, prepared anew for the chip: the binaries were neither loaded "
    "nor timed on it"
)


class QnnBackend:
    """ONNX Runtime's QNN provider, as a compiler for the HTP."""

    name = "qnn"
    dialect = "qnn"
    options: ClassVar[Mapping[str, str]] = OPTIONS

    def require(self, platform: Platform | None, options: Mapping[str, str]) -> None:
        """Check options and their files, chip and package; see `Backend.require`."""
        told = asked(platform, options)
        if told.calibration is not None:
            read_text(told.calibration)
        if told.config is not None:
            read_model_config(told.config)
        if find_spec("onnxruntime_qnn") is None:
            raise MissingExtraError("ONNX Runtime's QNN provider is not installed: pip install 'edgewright[qnn]'")

    def compile(self, work: StageWork) -> StageEntry:
        """Calibrate, write the graphs in codes and compile them; see `Backend.compile`.

        Peak memory is the float32 weights, for the calibration, or what the vendor's compiler takes.
        """
        return _Stage(work, asked(work.platform, work.options)).entry()

    def stand_in(self, root: Path, entry: StageEntry, threads: int | None) -> tuple[QnnEngine, str] | None:
        """Return the engine in the HTP's simulator; None where the HTP itself is."""
        return (open_graphs(root, entry), _UNCHECKED) if simulates() else None


class _Stage:
    """One stage on its way."""

    def __init__(self, work: StageWork, asked: Asked) -> None:
        self.work, self.asked = work, asked
        self.contract = _checked(work.contract)
        self.rows, self.context = sizes(asked, self.contract.bounds["capacity"][1])
        self.folder = work.folder / ENGINE
        self.model = onnx.load(work.folder / MODEL_FILE, load_external_data=False)
        self.weights = Weights(self.model, work.folder)
        self.binaries: list[str] = []

    def spelled(self, rows: int, context: int) -> StaticGraph:
        kv = [layer.past_key for layer in self.contract.kv]
        return spell(self.model, kv, rows=rows, context=context, converted=self.asked.kv_bits == 8)

    def entry(self) -> StageEntry:
        """Write everything; returns the manifest's entry."""
        shutil.rmtree(self.folder, ignore_errors=True)
        # The weights in codes, the binary with them, and what the vendor's compiler keeps meanwhile.
        require_space(self.work.folder, 3 * (self.work.folder / WEIGHTS_FILE).stat().st_size, "Compiling")
        for name in (GRAPHS, TABLES, GENIE):
            (self.folder / name).mkdir(parents=True)
        whole = {PROMPT: self.spelled(self.rows, self.context), TOKEN: self.spelled(1, self.context)}
        file = WeightFile(self.weights, self.folder / GRAPHS, self.asked.weights)
        file.write(whole[PROMPT].sources)
        tables = {name: self._table(name, stored) for name, stored in whole[PROMPT].tables.items()}
        cuts = cuts_of(whole[PROMPT], file.sizes | self._caches(whole[TOKEN]), self.asked.part_bytes)
        encodings, calibration = self._encodings(whole[PROMPT], file, tables)
        parts = {kind: parts_of(graph, cuts) for kind, graph in whole.items()}
        described = [self._part(number, parts, file, encodings) for number in range(len(cuts) + 1)]
        names = [*whole[PROMPT].inputs, *whole[PROMPT].outputs, *crossing(parts[PROMPT])]
        description: dict[str, Any] = {
            "version": 1,
            "soc": dataclasses.asdict(self.asked.soc),
            "rows": self.rows,
            "context": self.context,
            "tensors": {name: _told(encodings[name]) for name in names if name != IDS},
            "windows": dict(whole[PROMPT].windows),
            "tables": {name: f"{TABLES}/{name}.npy" for name in tables},
            "parts": described,
            "weights": file.record,
            "calibration": calibration,
        }
        description["genie"] = self._genie(parts, encodings, tables, whole[PROMPT])
        (self.folder / DESCRIPTION).write_bytes(canonical_json(description))
        return self._entry(description)

    def _caches(self, graph: StaticGraph) -> dict[str, int]:
        """Return the bytes of the caches that a graph takes."""
        past = (name for name in graph.inputs if name.startswith("past_"))
        return {name: math.prod(graph.shapes[name]) * self.asked.kv_bits // 8 for name in past}

    def _table(self, name: str, stored: str) -> npt.NDArray[np.float32]:
        """Write a table's first rows as a file of their own and return them."""
        table = self.weights.tensor(stored)[: self.context].astype(np.float32)
        np.save(self.folder / TABLES / f"{name}.npy", table)
        return table

    def _encodings(
        self, graph: StaticGraph, file: WeightFile, tables: Mapping[str, npt.NDArray[np.float32]]
    ) -> tuple[dict[str, Encoding], dict[str, Any]]:
        """Observe the activations, and return all encodings and the record of what they were observed on."""
        count = min(self.asked.tokens, self.context)
        rows = min(self.rows, count)
        count -= count % rows
        vocab = graph.shapes["logits"][-1]
        ids, said = calibration_ids(self.work.root / "sidecars", self.asked.calibration, count, vocab)
        ranges = ranges_of(self.spelled(rows, count), file, self.folder / GRAPHS, tables, ids)
        found = encodings_of(graph, ranges, self.asked.kv_bits)
        return found, {"text": said, "tokens": count}

    def _part(
        self,
        number: int,
        parts: Mapping[str, Sequence[StaticGraph]],
        file: WeightFile,
        encodings: Mapping[str, Encoding],
    ) -> dict[str, Any]:
        """Write and compile the graphs of a part; returns what the description says of it."""
        total = len(parts[PROMPT])
        described: dict[str, Any] = {}
        for kind, rows in ((PROMPT, self.rows), (TOKEN, 1)):
            name = f"{kind}_ar{rows}_cl{self.context}_{number + 1}_of_{total}"
            model = model_of(parts[kind][number], file, encodings, name)
            (self.folder / GRAPHS / f"{name}.onnx").write_bytes(model.SerializeToString(deterministic=True))
            described[kind] = {"graph": f"{GRAPHS}/{name}.onnx", "context": f"{name}.onnx"}
        graphs = {told["context"]: told["graph"] for told in described.values()}
        binary = f"{GENIE}/{self.work.name}_part_{number + 1}_of_{total}.bin"
        soc = dataclasses.asdict(self.asked.soc)
        made = make_contexts(self.folder, graphs, binary, chip_options(soc), share=self.asked.share)
        self.binaries += [Path(name).name for name in made]
        return described | {"binaries": made}

    def _genie(
        self,
        parts: Mapping[str, Sequence[StaticGraph]],
        encodings: Mapping[str, Encoding],
        tables: Mapping[str, npt.NDArray[np.float32]],
        whole: StaticGraph,
    ) -> dict[str, Any]:
        """Write the Genie folder; returns what the description says of it."""
        components = {
            f"{kind}_{number + 1}_of_{len(graphs)}": {
                "inputs": {name: _tensor(graph, encodings, name) for name in graph.inputs},
                "outputs": {name: _tensor(graph, encodings, name) for name in graph.outputs},
            }
            for kind, graphs in parts.items()
            for number, graph in enumerate(graphs)
        }
        missing = write_genie(
            self.folder / GENIE,
            self.work.root,
            self.contract,
            self.asked.soc,
            context=self.context,
            binaries=self.binaries,
            metadata={"components": components, "context": self.context, "binaries": self.binaries},
            tables=tables,
            windows=whole.windows,
            config=self.asked.config,
        )
        return {"binaries": self.binaries, "no_dialog": missing}

    def _entry(self, description: Mapping[str, Any]) -> StageEntry:
        prefix, soc = self.work.prefix, self.asked.soc
        bounds = {**self.contract.bounds, "batch": (1, 1), "capacity": (1, self.context)}
        settings = {name: description[name] for name in ("rows", "context", "calibration", "genie")}
        settings |= {
            "soc": soc.name, "kv": f"uint{self.asked.kv_bits}", "weights": _summary(description["weights"]),
            "shared_weights": self.asked.share, "parts": len(description["parts"]),
        }  # fmt: skip
        return StageEntry(
            graph=f"{prefix}/{MODEL_FILE}",
            dialect="qnn",
            contract=dataclasses.replace(self.contract, bounds=bounds),
            settings=settings,
            engine=f"{prefix}/{ENGINE}/{DESCRIPTION}",
            machine=Machine(f"htp-{soc.dsp_arch}", (), metadata.version(_PACKAGE), "qnn"),
            runtime="qnn",
        )


def _checked(contract: StageContract) -> StageContract:
    """Return a language model's contract; raises UnsupportedFormatError for another stage."""
    names = {tensor.name for tensor in contract.inputs}
    if not contract.kv or "logit_positions" not in names:
        raise UnsupportedFormatError(
            "The target qnn compiles language models with a key/value cache, and nothing else."
        )
    if contract.state:
        raise UnsupportedFormatError("The model has recurrent states, which have no form on Qualcomm's HTP: use cpu.")
    if IDS not in names:
        raise UnsupportedFormatError("The target qnn looks embeddings up on the HTP: leave --embeddings outside out.")
    if contract.kv_dtype != "float32":
        raise UnsupportedFormatError(
            f"The recipe's cache is {contract.kv_dtype}, and the HTP's has codes of its own: choose with the option kv."
        )
    return contract


def _told(encoding: Encoding) -> dict[str, Any]:
    return {"dtype": encoding.dtype, "scale": encoding.scale, "offset": encoding.offset}


def _tensor(graph: StaticGraph, encodings: Mapping[str, Encoding], name: str) -> dict[str, Any]:
    shape = {"shape": list(graph.shapes[name])}
    if name == IDS:
        return {**shape, "dtype": "int32"}
    encoding = encodings[name]
    return {**shape, "dtype": encoding.dtype, "quantization": {"scale": encoding.scale, "offset": encoding.offset}}


def _summary(record: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count the weights by what became of them."""
    counts: dict[str, int] = {}
    for one in record:
        kind = f"{one['how']} int{one['bits']}" if one["bits"] != 16 else "rounded uint16"
        kind += f", blocks of {one['block']}" if one["block"] else ", by column" if one["bits"] != 16 else ", one scale"
        counts[kind] = counts.get(kind, 0) + 1
    return counts
