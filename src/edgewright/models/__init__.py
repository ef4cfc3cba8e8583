"""Model families: one file named after Hugging Face's `model_type`, and the binding of a checkpoint to its network."""

from edgewright.models._bind import FAMILIES, build_llm, config_of, module_name

__all__ = ["FAMILIES", "build_llm", "config_of", "module_name"]
