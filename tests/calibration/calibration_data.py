"""What the tests of calibration data share: tokenizers, texts, a call of `load_samples` with small numbers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from conftest import CHAT_TEMPLATE, TOKENIZERS, tokenizer_json
from edgewright.calibration import Samples, load_samples
from edgewright.runtime.template import ChatTemplate
from edgewright.runtime.text import Tokenizer

#: A token a printable ASCII character, nothing in front of a text.
ASCII = Tokenizer.from_files(tokenizer_json().encode(), None)
VOCAB = ASCII.vocab_size
TEMPLATE = ChatTemplate(CHAT_TEMPLATE, special_tokens={})


def golden_tokenizer(name: str) -> Tokenizer:
    """Return a golden's tokenizer; `bpe_bos` puts a token in front of a text."""
    folder = TOKENIZERS / name
    return Tokenizer.from_files(
        folder / "tokenizer.json", json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    )


def words(count: int, seed: int = 0) -> str:
    """Return a text of random words, in lines."""
    rng = random.Random(seed)
    made = ("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 9))) for _ in range(count))
    return "".join(word + rng.choice(("  ", " ", " ", "\n")) for word in made)


def load(spec: Any, tokenizer: Tokenizer | None = ASCII, **options: Any) -> Samples:
    """Load with the ASCII tokenizer's vocabulary, 1,000 tokens of context, sequences of 32."""
    settings = {"vocab_size": VOCAB, "max_context": 1000, "template": TEMPLATE, "length": 32, **options}
    return load_samples(spec, tokenizer, **settings)


def write_lines(path: Path, *lines: Any) -> Path:
    """Write JSON lines; a string stands as it is."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def same(first: Samples, second: Samples) -> bool:
    """Whether two sets have the same rows bit for bit."""
    return len(first.rows) == len(second.rows) and all(map(np.array_equal, first.rows, second.rows))
