"""What a checkpoint is: a config, lazily mapped tensors and tokenizer files, whatever they came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgewright.checkpoint.layouts.quantization import Quantization
from edgewright.checkpoint.tensor import StoredTensor


@dataclass(frozen=True)
class Checkpoint:
    """A model as it was trained; opening one reads headers only.

    `config` is the content of `config.json`, or its equivalent made from a GGUF file's metadata. `tensors` maps
    Hugging Face names to tensors whose bytes stay in the file until they are asked for. `files` are the weight and
    config files that make up the source. `quantization` says how another tool quantized it, or None.
    """

    path: Path
    kind: Literal["huggingface", "gguf"]
    config: dict[str, Any]
    tensors: Mapping[str, StoredTensor]
    files: tuple[Path, ...]
    load_sidecars: Callable[[], dict[str, bytes]] = field(repr=False, compare=False)
    quantization: Quantization | None = None

    def sidecars(self) -> dict[str, bytes]:
        """Return the files that go beside the graph, by name, those that exist or can be rebuilt.

        Names: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`, `generation_config.json`,
        `special_tokens_map.json`. The first call may take seconds (a tokenizer is rebuilt); later calls don't.
        Raises TokenizerError if a tokenizer is stored in a form that can't be rebuilt, CheckpointError if a file
        breaks its format.
        """
        return dict(self.load_sidecars())
