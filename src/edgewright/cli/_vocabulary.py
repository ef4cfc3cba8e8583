"""The flags of a reduced vocabulary, for the verbs that read a checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.build.reduction import VocabularyRequest

_FILES = ("vocab_text", "vocab_inputs", "vocab_keep")


def add_vocabulary(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("vocabulary reduction")
    group.add_argument(
        "--vocab-size", type=vocabulary_size, metavar="N|P%", help="keep so many tokens, or this share of them"
    )
    group.add_argument(
        "--vocab-text", nargs="+", default=[], metavar="FILE", help="texts (or .jsonl) whose frequent tokens are kept"
    )
    group.add_argument(
        "--vocab-inputs", nargs="+", default=[], metavar="FILE", help="inputs (or .jsonl) of which every token is kept"
    )
    group.add_argument("--vocab-keep", metavar="FILE", help="token ids and texts to keep, one a line")


def vocabulary_request(args: argparse.Namespace) -> VocabularyRequest | None:
    """Return what the flags ask for, None without them; raises UsageError for files without a size."""
    if args.vocab_size is None:
        given = [f"--{name.replace('_', '-')}" for name in _FILES if getattr(args, name)]
        if given:
            raise UsageError(f"{given[0]} needs --vocab-size: say how many tokens are to be kept, or which share.")
        return None
    from edgewright.build.reduction import VocabularyRequest

    return VocabularyRequest(
        args.vocab_size,
        tuple(map(Path, args.vocab_text)),
        tuple(map(Path, args.vocab_inputs)),
        Path(args.vocab_keep) if args.vocab_keep else None,
    )


def vocabulary_size(text: str) -> int | float:
    """Argument type: a number of tokens from 1 upwards, or a share above 0 and up to 100 per cent."""
    number = text.removesuffix("%")
    try:
        value = float(number) / 100 if number != text else int(text)
    except ValueError:
        value = 0
    if value <= 0 or (number != text and not value <= 1):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number of tokens such as 16000 nor a share such as 50%"
        )
    return value
