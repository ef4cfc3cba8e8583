"""What calibration needs of a model besides its weights: how it turns text and chats into token ids."""

from __future__ import annotations

from dataclasses import dataclass

from edgewright.checkpoint import Checkpoint
from edgewright.checkpoint.text import parse_json
from edgewright.errors import TemplateError
from edgewright.runtime.template import ChatTemplate
from edgewright.runtime.text import Tokenizer


@dataclass(frozen=True)
class TextSide:
    """A checkpoint's tokenizer and chat template; None for what it lacks."""

    tokenizer: Tokenizer | None
    template: ChatTemplate | None


def text_side(checkpoint: Checkpoint) -> TextSide:
    """Read tokenizer and chat template; raises TokenizerError, TemplateError or CheckpointError when one is broken."""
    files = checkpoint.sidecars()
    if "tokenizer.json" not in files:
        return TextSide(None, None)
    settings = parse_json(files.get("tokenizer_config.json", b"{}"), "tokenizer_config.json")
    tokenizer = Tokenizer.from_files(files["tokenizer.json"], settings if isinstance(settings, dict) else {})
    if "chat_template.jinja" not in files:
        return TextSide(tokenizer, None)
    try:
        source = files["chat_template.jinja"].decode("utf-8")
    except UnicodeDecodeError as error:
        raise TemplateError(f"The chat template is not UTF-8 text at byte {error.start}: repair it.") from None
    return TextSide(tokenizer, ChatTemplate(source, special_tokens=tokenizer.special_tokens))
