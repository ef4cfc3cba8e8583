"""A bundle's language model: load it, open sessions on it, generate text with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bundle import Manifest, StageEntry, opened_while_checked, read_manifest
from edgewright.errors import BundleError, GenerationError, TemplateError, TokenizerError
from edgewright.files import canonical_json, inside
from edgewright.runtime.embedding import SIDECAR as EMBEDDING
from edgewright.runtime.embedding import EmbeddingTable, Floats, embedding_of, embedding_width
from edgewright.runtime.engine import Engine
from edgewright.runtime.generation import Generation, Tables
from edgewright.runtime.paired import open_llm
from edgewright.runtime.prefix import load_prefix, save_prefix
from edgewright.runtime.rawtable import Rows
from edgewright.runtime.sampling import SamplingParams
from edgewright.runtime.session import Session
from edgewright.runtime.spelling import Encoded, Speller
from edgewright.runtime.step import Ids
from edgewright.runtime.stopping import eos_token_ids
from edgewright.runtime.template import ChatTemplate, encode_chat
from edgewright.runtime.text import Tokenizer
from edgewright.runtime.vocabulary import SIDECAR, Vocabulary, vocabulary_of

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """The `llm` stage of a bundle (and its `prefill`) with tokenizer and template. Make one with `LLM.load`."""

    def __init__(self, folder: Path, manifest: Manifest, engine: Engine) -> None:
        self.folder = folder
        self.manifest = manifest
        self._engine = engine

    @classmethod
    def load(
        cls, bundle: str | Path, *, threads: int | None = None, check: bool = True, share_cores: bool = False
    ) -> LLM:
        """Load a bundle (or an exported folder).

        `threads` is the number of cores to use, by default one per physical core. `check` compares every file with its
        digest while the engine loads. `share_cores` suits several engines in a process: see `EngineSettings.sharing`.
        Raises BundleError and its subclasses: no bundle, a changed or missing file, a newer schema, another machine or
        engine version.
        """
        folder = Path(bundle)
        manifest = read_manifest(folder)
        stage = llm_stage(manifest)
        engine = opened_while_checked(
            folder,
            manifest,
            lambda: open_llm(folder, manifest, stage, threads=threads, share_cores=share_cores),
            check=check,
        )
        llm = cls(folder, manifest, engine)
        _ = llm.vocabulary, llm.table  # damaged ones are refused now
        return llm

    @property
    def max_context(self) -> int:
        """Most tokens a session holds."""
        return self._engine.contract.bounds["capacity"][1]

    @cached_property
    def model_id(self) -> str:
        """Digest of what computes: the stages' files. Caches saved under another id are refused."""
        computing = ("stages/", f"sidecars/{SIDECAR}", f"sidecars/{EMBEDDING}")
        files = {name: entry for name, entry in self.manifest.files.items() if name.startswith(computing)}
        return hashlib.sha256(canonical_json(files)).hexdigest()

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The token ids that a bundle with a reduced vocabulary keeps, None for any other; raises BundleError."""
        return vocabulary_of(self.folder, self.manifest)

    @cached_property
    def table(self) -> EmbeddingTable | None:
        """The embedding table of a bundle that has it outside the graph, None for any other; raises BundleError."""
        return embedding_of(self.folder, self.manifest)

    @property
    def embedding_width(self) -> int | None:
        """Numbers in a row of embeddings that the engine takes, None where it takes token ids only."""
        return embedding_width(self._engine.contract)

    def embed(self, ids: Ids) -> Floats:
        """Return the rows of embeddings float32 `[n, hidden]` that `Session.append` feeds for ids.

        Raises GenerationError when the table is inside the graph, or an id is not in it.
        """
        if self.table is None:
            raise GenerationError("The bundle's embedding table is inside its graph: deploy with --embeddings outside.")
        columns = np.asarray(ids, dtype=np.int64)
        columns = columns if self.vocabulary is None else self.vocabulary.columns(columns)
        if columns.size and not 0 <= columns.min() <= columns.max() < self.table.vocab:
            raise GenerationError(f"The ids reach beyond the embedding table of {self.table.vocab} rows.")
        return self.table.rows(columns)

    def embedding_blocks(self, rows: int = 4096) -> Iterator[Floats]:
        """Yield the rows of embeddings of all token ids in their order, float32 `[up to rows, hidden]`.

        An id that a reduced vocabulary dropped has a row of zeros. Raises GenerationError when the table is inside the
        graph.
        """
        self.embed([])  # refuses a bundle without a table
        assert self.table is not None
        kept = self.vocabulary
        count = self.table.vocab if kept is None else kept.full_size
        for start in range(0, count, rows):
            ids = np.arange(start, min(start + rows, count))
            block = np.zeros((len(ids), self.table.hidden), np.float32)
            there = np.ones(len(ids), np.bool_) if kept is None else np.isin(ids, kept.ids)
            block[there] = self.embed(ids[there])
            yield block

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; raises TokenizerError when the bundle has none.

        With a reduced vocabulary, `encode` spells dropped tokens in kept ones.
        """
        path = self._sidecar("tokenizer.json")
        if path is None:
            raise TokenizerError(
                "The bundle has no tokenizer.json, so it takes token ids only: use ids, or deploy from a checkpoint "
                "that has its tokenizer."
            )
        tokenizer = Tokenizer.from_files(path, self._json("tokenizer_config.json"))
        if self.vocabulary is not None:
            tokenizer.spell = Speller(tokenizer, self.vocabulary)
        return tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether the bundle has a tokenizer."""
        return self._sidecar("tokenizer.json") is not None

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The chat template; raises TemplateError when the bundle has none (a base model)."""
        path = self._sidecar("chat_template.jinja")
        if path is None:
            raise TemplateError(
                "The bundle has no chat template (a base model?): give a plain prompt instead of a chat."
            )
        return ChatTemplate(_text(path), special_tokens=self.tokenizer.special_tokens)

    @property
    def has_chat_template(self) -> bool:
        """Whether the bundle has a chat template."""
        return self._sidecar("chat_template.jinja") is not None

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """All ids that end a text, by Hugging Face's rule."""
        tokenizer = self.tokenizer if self.has_tokenizer else None
        return eos_token_ids(self._json("generation_config.json"), self.manifest.model, tokenizer)

    def session(self, batch: int = 1) -> Session:
        """Open an empty session of `batch` sequences."""
        return Session(self._engine, batch=batch, vocabulary=self.vocabulary, table=self.table)

    def save_prefix(self, path: str | Path, session: Session, ids: Sequence[int]) -> None:
        """Save a session's cache with the `ids` it holds; see `prefix.save_prefix`."""
        save_prefix(Path(path), session, ids, self.model_id)

    def load_prefix(self, path: str | Path) -> tuple[Session, list[int]]:
        """Return a new session that holds a saved prefix, and its ids; refused when another model made it."""
        session = self.session()
        return session, load_prefix(Path(path), session, self.model_id)

    def encode_chat(self, messages: Messages, *, add_generation_prompt: bool = True) -> list[int]:
        """Return the token ids of a chat, equal to transformers' `apply_chat_template`."""
        return encode_chat(self.tokenizer, self.chat_template, messages, add_generation_prompt=add_generation_prompt)

    def generate(
        self,
        prompt: str | Sequence[int] | Messages = (),
        *,
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        session: Session | None = None,
        ignore_eos: bool = False,
        history: Sequence[int] = (),
        embeddings: Rows | None = None,
        table: Tables = "own",
    ) -> Generation:
        """Start generating; iterate over the result for text pieces, or ask it for `.text` or `.all_tokens()`.

        `prompt` is text (encoded with the tokenizer's special tokens), token ids, or chat messages. With `session` the
        dialog continues there: `prompt` follows what it holds, which is all but the last token of the generation
        before, and `history` tells the repetition penalty what that was. Generation ends at any EOS id, a stop string,
        `max_tokens`, or when the context is full (`finish_reason` is then "length"). Raises ContextOverflowError when
        the prompt itself does not fit, GenerationError when it is a mixture.

        A bundle with its embedding table outside takes `embeddings` (float32 `[n, hidden]`, or a RawRows) instead of a
        `prompt`. Tokens are then fed through `table`: the bundle's own, another Table, or None, which ends the
        generation after one token ("no-table").
        """
        ids = self.prompt_ids(prompt) if embeddings is None or prompt else []
        return Generation(
            session if session is not None else self.session(),
            ids,
            tokenizer=self.tokenizer if self.has_tokenizer else None,
            eos_ids=() if ignore_eos else self.eos_ids,
            sampling=sampling or SamplingParams(),
            stop=stop,
            max_tokens=max_tokens,
            history=history,
            embeddings=embeddings,
            table=table,
        )

    def prompt_ids(self, prompt: str | Sequence[int] | Messages) -> list[int]:
        """Return the token ids of what `generate` takes; raises as it does."""
        if isinstance(prompt, Encoded):
            return prompt
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        messages = [item for item in prompt if isinstance(item, Mapping)]
        if messages and len(messages) == len(prompt):
            return self.encode_chat(messages)
        if messages or not all(isinstance(item, int | np.integer) for item in prompt):
            raise GenerationError("A prompt is a text, a list of token ids or a list of messages, not a mixture.")
        ids = [int(item) for item in prompt if not isinstance(item, Mapping)]
        kept = self.vocabulary
        dropped = [] if kept is None else [i for i in ids if i not in kept and 0 <= i < kept.full_size]
        if kept is not None and dropped:
            raise GenerationError(kept.refusal(dropped[0], self.tokenizer.id_to_token(dropped[0])))
        return ids

    def _sidecar(self, name: str) -> Path | None:
        relative = f"sidecars/{name}"
        return inside(self.folder, relative) if relative in self.manifest.files else None

    def _json(self, name: str) -> dict[str, Any]:
        path = self._sidecar(name)
        if path is None:
            return {}
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise BundleError(f"The bundle's {name} is not valid JSON: deploy the checkpoint again.") from None
        if not isinstance(data, dict):
            raise BundleError(f"The bundle's {name} is not a JSON object: deploy the checkpoint again.")
        return data


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise TemplateError(f"{path.name} is not UTF-8 text: repair it and deploy again.") from None


def llm_stage(manifest: Manifest) -> StageEntry:
    """Return the manifest's `llm` stage; raises BundleError when it has none."""
    stage = manifest.stages.get("llm")
    if stage is None:
        raise BundleError("The bundle has no llm stage, so it can't generate text.")
    if missing := {"batch", "capacity"} - stage.contract.bounds.keys():
        raise BundleError(f"The bundle's llm stage has no bounds for {', '.join(sorted(missing))}: build it again.")
    return stage
