"""The example's engine: runs on the device, so it imports the runtime's side of edgewright only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edgewright.bundle import StageEntry
from edgewright.contract import StageContract
from edgewright.errors import BundleError, GenerationError, first_line
from edgewright.runtime.engine import Array, model_file
from edgewright_example.container import read_container


class ExampleEngine:
    """A loaded stage."""

    def __init__(self, session: ort.InferenceSession, contract: StageContract) -> None:
        self._session, self.contract = session, contract

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that computes from the inputs as they then are into the outputs, in their own memory."""
        names = list(outputs)

        def run() -> None:
            try:
                results = self._session.run(names, dict(inputs))
            except Exception as error:
                raise GenerationError(
                    f"The example's engine failed ({first_line(error)}): verify the bundle."
                ) from None
            for name, result in zip(names, results, strict=True):
                np.copyto(outputs[name], result)

        return run


def open_engine(folder: Path, entry: StageEntry, *, threads: int | None, share_cores: bool) -> ExampleEngine:
    """Load a stage; the entry point `edgewright.engines`. Raises BundleError when a file isn't what it should be."""
    path = model_file(folder, entry)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    try:
        session = ort.InferenceSession(read_container(path), options, providers=["CPUExecutionProvider"])
    except BundleError:
        raise
    except Exception as error:
        raise BundleError(
            f"The example's engine can't load {path.name} ({first_line(error)}): compile it again."
        ) from None
    return ExampleEngine(session, entry.contract)
