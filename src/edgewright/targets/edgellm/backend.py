"""The back end of TensorRT Edge-LLM: checks every node, and writes the folder that its builder reads on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import onnx

from edgewright.bundle.manifest import StageEntry
from edgewright.dialects.edgellm import NAME
from edgewright.errors import UsageError
from edgewright.files import inside
from edgewright.graph.writer import MODEL_FILE
from edgewright.targets.backend import StageWork
from edgewright.targets.edgellm.checking import check_nodes
from edgewright.targets.edgellm.folder import CONFIG_FILE, check_table, metadata, write_folder

if TYPE_CHECKING:
    from pathlib import Path

    from edgewright.targets.edgellm.stand_in import StandIn
    from edgewright.targets.platform import Platform

FOLDER = "engine"
#: The compiler that platforms of NVIDIA name; one of the user's own may name none.
_COMPILERS = (None, "tensorrt")
#: What a verification is told of how precise the engine is.
_SETTINGS = {"computes": "float16"}


class EdgeLlmBackend:
    """NVIDIA's TensorRT Edge-LLM, whose builder runs on the device alone."""

    name = NAME
    dialect = NAME
    options: ClassVar[Mapping[str, str]] = {}

    def require(self, platform: Platform | None, options: Mapping[str, str]) -> None:
        """Raise UsageError for a platform that isn't NVIDIA's."""
        if platform is not None and platform.compiler not in _COMPILERS:
            raise UsageError(
                f"TensorRT Edge-LLM builds for no {platform.title} (its compiler is {platform.compiler}): name a "
                "platform of NVIDIA's with --for, such as jetson-thor."
            )

    def compile(self, work: StageWork) -> StageEntry:
        """Check a stage's nodes and write `engine/`, the builder's folder. See `Backend.compile`."""
        model = onnx.load(work.folder / MODEL_FILE, load_external_data=False)
        check_nodes(model)
        write_folder(work.root, work.folder, work.folder / FOLDER, model.graph)
        graph, engine = f"{work.prefix}/{MODEL_FILE}", f"{work.prefix}/{FOLDER}/{MODEL_FILE}"
        return StageEntry(graph, self.dialect, work.contract, _SETTINGS, engine=engine, runtime=NAME)

    def stand_in(self, root: Path, entry: StageEntry, threads: int | None) -> tuple[StandIn, str]:
        """Return what computes here what the folder's graph, config and weights say, and what that leaves open.

        Raises BundleError where its embedding table is not the bundle's own.
        """
        from edgewright.targets.edgellm.stand_in import UNCHECKED, StandIn, read_config

        engine = inside(root, entry.engine or entry.graph)
        _, record = metadata(onnx.load(engine, load_external_data=False).graph)
        if entry.engine is not None:
            check_table(root, engine.parent, record)
        config = read_config(engine.parent / CONFIG_FILE)
        return StandIn(engine, entry.contract, config, threads), UNCHECKED


BACKEND = EdgeLlmBackend()
