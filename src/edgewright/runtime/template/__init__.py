"""Chat templates: a Jinja program that came with a checkpoint turns messages into the prompt's text."""

from edgewright.runtime.template.chat import MAX_SOURCE_CHARS, ChatTemplate, encode_chat

__all__ = ["MAX_SOURCE_CHARS", "ChatTemplate", "encode_chat"]
