"""Choosing the tokens of a smaller vocabulary.

What must stay stays: special tokens, those that configs name, bytes, the words of the chat template, a user's own
list, and every token of the inputs the model is meant for. The rest of the wanted size goes to the tokens that texts
have most often, and after those to the lowest ids, which a tokenizer learned first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgewright.build.documents import Document, documents, pieces, read_text
from edgewright.errors import TokenizerError, UsageError
from edgewright.files import sha256_of

if TYPE_CHECKING:
    from edgewright.runtime.template import ChatTemplate
    from edgewright.runtime.text import Tokenizer

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class VocabularyRequest:
    """What is asked for: how many tokens to keep, or which share of them (a float up to 1), and files that help choose.

    `texts` are counted. All tokens of `inputs` are kept. `keep` lists token ids and texts, one a line.
    """

    size: int | float
    texts: tuple[Path, ...] = ()
    inputs: tuple[Path, ...] = ()
    keep: Path | None = None

    @property
    def method(self) -> str:
        """The name of the method."""
        return "input-aware" if self.inputs else "frequency"

    def key(self) -> dict[str, Any]:
        """Return what decides over the choice besides the checkpoint; raises UsageError when a file can't be read."""
        keep = (self.keep,) if self.keep else ()
        groups = {"texts": self.texts, "inputs": self.inputs, "keep": keep}
        return {"size": self.size, **{name: [_digest(path) for path in paths] for name, paths in groups.items()}}


@dataclass(frozen=True)
class KeptVocabulary:
    """The kept ids, int64 `[kept]` ascending, of `full_size`; `record` says how many stay for which reason."""

    ids: Ids
    full_size: int
    record: Mapping[str, Any] = field(default_factory=dict)


def choose_vocabulary(
    request: VocabularyRequest, sidecars: Mapping[str, bytes], config: Mapping[str, Any], full_size: int
) -> KeptVocabulary:
    """Choose the ids to keep of a model with `full_size` ids.

    `sidecars` are a checkpoint's files by name (tokenizer, template, generation config). Ids without a token, which
    only pad the tables, are never kept. Raises UsageError when the wanted size can't hold what must stay or exceeds the
    tokens there are, or a file is wrong; TokenizerError without a tokenizer.
    """
    if "tokenizer.json" not in sidecars:
        raise TokenizerError(
            "The checkpoint has no tokenizer.json, so its tokens can't be told apart: a vocabulary can be reduced only "
            "with its tokenizer."
        )
    chooser = _Chooser(request, sidecars, config, full_size)
    return chooser.choose()


class _Chooser:
    """One choice: a tokenizer, its template, and the reasons for which ids stay."""

    def __init__(
        self, request: VocabularyRequest, sidecars: Mapping[str, bytes], config: Mapping[str, Any], full_size: int
    ) -> None:
        from edgewright.runtime.template import ChatTemplate
        from edgewright.runtime.text import Tokenizer

        self._request, self._config, self._full = request, config, full_size
        self._generation = _json(sidecars, "generation_config.json")
        self._tokenizer: Tokenizer = Tokenizer.from_files(
            sidecars["tokenizer.json"], _json(sidecars, "tokenizer_config.json")
        )
        source = sidecars.get("chat_template.jinja")
        self._template: ChatTemplate | None = None
        if source is not None:
            text = source.decode("utf-8", "replace")
            self._template = ChatTemplate(text, special_tokens=self._tokenizer.special_tokens)
        ids = range(full_size)
        self._known = np.array([self._tokenizer.id_to_token(i) is not None for i in ids], dtype=bool)

    def choose(self) -> KeptVocabulary:
        wanted = self._wanted()
        reasons: dict[str, int] = {}
        kept = np.zeros(self._full, dtype=bool)
        for reason, ids in self._required():
            found = np.array(sorted(ids), dtype=np.int64)
            found = found[(found >= 0) & (found < self._full)]
            fresh = found[self._known[found] & ~kept[found]]
            kept[fresh] = True
            reasons[reason] = len(fresh)
        needed = int(kept.sum())
        if needed > wanted:
            parts = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
            raise UsageError(
                f"A vocabulary of {wanted} tokens can't hold the {needed} that must stay ({parts}): ask for at least "
                f"--vocab-size {needed}."
            )
        counts = self._counts()
        taken, characters = self._fill(kept, counts, wanted - needed)
        reasons["counted in texts"] = int((counts[taken] > 0).sum())
        reasons["lowest ids"] = len(taken) - reasons["counted in texts"]
        reasons["characters of those"] = characters
        total = int(counts.sum())
        record = {
            "method": self._request.method,
            "kept": int(kept.sum()),
            "full": self._full,
            "padding": int((~self._known).sum()),
            "reasons": reasons,
            "counted_tokens": total,
            "coverage": round(float(counts[kept].sum()) / total, 6) if total else None,
        }
        return KeptVocabulary(np.flatnonzero(kept).astype(np.int64), self._full, record)

    def _fill(self, kept: npt.NDArray[np.bool_], counts: Ids, room: int) -> tuple[Ids, int]:
        """Mark `room` more tokens as kept; returns those chosen, and the number of characters kept for their sake.

        The most frequent come first; of equally frequent ones the lowest id, which is the earliest merge. SentencePiece
        has its characters behind all merges, so a token brings those with it that it is made of.
        """
        order = np.argsort(-counts, kind="stable")
        taken: list[int] = []
        characters = 0
        for token_id in order[self._known[order] & ~kept[order]].tolist():
            token = self._tokenizer.id_to_token(token_id) or ""
            found = {self._tokenizer.token_to_id(character) for character in token} - {token_id, None}
            parts = [part for part in found if part is not None and part < self._full and not kept[part]]
            if not kept[token_id] and len(parts) < room:
                kept[[token_id, *parts]] = True
                taken.append(token_id)
                characters += len(parts)
                room -= 1 + len(parts)
            if not room:
                break
        return np.array(taken, dtype=np.int64), characters

    def _wanted(self) -> int:
        """Return the wanted number of tokens."""
        size, there = self._request.size, int(self._known.sum())
        if isinstance(size, float):
            if not 0 < size <= 1:
                raise UsageError(f"A vocabulary of {size:g} of the tokens isn't possible: give a share up to 1.")
            return max(1, round(size * there))
        if size < 1:
            raise UsageError(f"A vocabulary of {size} tokens isn't possible: give a number from 1 upwards.")
        if size > there:
            more = f" ({self._full} ids, of which {self._full - there} have no token)" if there < self._full else ""
            raise UsageError(
                f"A vocabulary of {size} tokens is more than the {there} of the model{more}: ask for fewer."
            )
        return size

    def _required(self) -> Iterator[tuple[str, Iterable[int]]]:
        """Yield the reasons for which tokens must stay, and their ids."""
        from edgewright.build import required

        yield "special", required.special_ids(self._tokenizer)
        yield "named in configs", required.named_ids(self._config) | required.named_ids(self._generation)
        yield "bytes and characters", required.base_ids(self._tokenizer)
        template = self._template
        yield "chat template", required.template_ids(self._tokenizer, template) if template else ()
        yield "keep list", self._listed() if self._request.keep else ()
        yield "inputs", (token for path in self._request.inputs for token in self._input_ids(path))

    def _counts(self) -> Ids:
        """Return how often each id stands in the texts."""
        counts = np.zeros(self._full, dtype=np.int64)
        for path in self._request.texts:
            for document in documents(path):
                parts = pieces(document) if isinstance(document, str) else [document]
                for part in parts:
                    ids = np.array(self._encoded(part, path), dtype=np.int64)
                    counts += np.bincount(ids[ids < self._full], minlength=self._full)
        return counts

    def _encoded(self, document: Document, path: Path) -> list[int]:
        from edgewright.build import required

        if isinstance(document, str):
            return self._tokenizer.encode(document, add_special_tokens=False)
        if self._template is None:
            raise UsageError(f"{path.name} holds dialogs and the model has no chat template: give plain texts.")
        return required.chat_ids(self._tokenizer, self._template, document)

    def _input_ids(self, path: Path) -> Iterator[int]:
        """Yield the tokens of the documents of a file, as they stand and as a user's message."""
        for document in documents(path):
            yield from self._encoded(document, path)
            if not isinstance(document, str):
                continue
            yield from self._encoded(document.strip(), path)
            if self._template is not None:
                yield from self._encoded([{"role": "user", "content": document}], path)

    def _listed(self) -> Iterator[int]:
        """Yield the ids of the user's list: a line is an id, a token, or a text (in quotes, or as it stands)."""
        path = self._request.keep
        assert path is not None
        for number, line in enumerate(read_text(path).splitlines(), 1):
            if line.strip():
                yield from self._line(line, f"{path.name}, line {number}")

    def _line(self, line: str, where: str) -> list[int]:
        text = line.strip()
        if text.isascii() and text.isdigit():
            token_id = int(text)
            if token_id >= self._full or not self._known[token_id]:
                raise UsageError(f"{where}: the model has no token {token_id}: give an id below {self._full}.")
            return [token_id]
        if (found := self._tokenizer.token_to_id(text)) is not None and found < self._full:
            return [found]
        if text.startswith("<|") and text.endswith("|>"):
            raise UsageError(f"{where}: the model has no token {text}: correct it, or quote it to keep its pieces.")
        if text.startswith('"'):
            try:
                text = json.loads(text)
            except ValueError:
                text = ""
            if not isinstance(text, str) or not text:
                raise UsageError(f"{where} begins with a quote and is no JSON string: write it as one.")
        ids = [i for form in (text, f" {text}") for i in self._tokenizer.encode(form, add_special_tokens=False)]
        lost = [i for i in ids if i >= self._full or i == self._tokenizer.unk_token_id]
        if lost or not ids:
            raise UsageError(f"{where}: the model has no tokens for {text!r}: remove the line.")
        return ids


def _digest(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise UsageError(f"{path} can't be read ({error.strerror or error}): give a text file.") from None


def _json(sidecars: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        data = json.loads(sidecars.get(name, b"{}"))
    except (ValueError, RecursionError):
        raise TokenizerError(f"{name} is not valid JSON: download it again.") from None
    return data if isinstance(data, dict) else {}
