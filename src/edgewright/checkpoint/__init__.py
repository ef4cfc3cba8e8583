"""What the user has: a folder or a file becomes a config, lazily mapped tensors and tokenizer files."""

from edgewright.checkpoint.checkpoint import Checkpoint
from edgewright.checkpoint.source import open_checkpoint
from edgewright.checkpoint.tensor import StoredTensor

__all__ = ["Checkpoint", "StoredTensor", "open_checkpoint"]
