"""Two engines for one language model: one that is faster over many tokens at once, and one that is faster over few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgewright.bundle import Manifest, StageEntry
from edgewright.contract import StageContract
from edgewright.errors import BundleError
from edgewright.runtime.embedding import INPUT
from edgewright.runtime.engine import Array, Engine, Mirror, open_engine

#: The stage beside `llm` that takes the long appends, and what the manifest's model says of it.
PREFILL, PREFILL_FROM = "prefill", "prefill_from"
#: Tokens from which the stage `prefill` is asked, unless a build says otherwise.
DEFAULT_PREFILL_FROM = 16


class PairedEngine:
    """`decode` for calls of fewer than `prefill_from` tokens a sequence, `prefill` for the others.

    Both have the contract and read and write the caller's caches, so a session may change between them with each call.
    Raises BundleError where their contracts differ.
    """

    def __init__(self, decode: Engine, prefill: Engine, prefill_from: int = DEFAULT_PREFILL_FROM) -> None:
        if decode.contract != prefill.contract:
            raise BundleError(
                "The bundle's stages llm and prefill take and give different tensors, so they can't share a session: "
                "build it again."
            )
        self.contract: StageContract = decode.contract
        self._decode, self._prefill, self._from = decode, prefill, prefill_from

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Bind the engine that the number of tokens asks for; see `Engine.bind`."""
        fed = inputs["input_ids"] if "input_ids" in inputs else inputs[INPUT]
        long = fed.shape[1] >= self._from
        engine, other = (self._prefill, self._decode) if long else (self._decode, self._prefill)
        call = engine.bind(inputs, outputs)
        if not isinstance(other, Mirror) or not self.contract.kv:
            return call
        cache, lengths = inputs[self.contract.kv[0].past_key], inputs["past_lengths"]

        def run() -> None:
            other.overwritten(cache, lengths)
            call()

        return run

    def overwritten(self, cache: Array, lengths: Array) -> None:
        """Tell both; see `Mirror.overwritten`."""
        for engine in (self._decode, self._prefill):
            if isinstance(engine, Mirror):
                engine.overwritten(cache, lengths)


def prefill_stage(manifest: Manifest) -> tuple[StageEntry, int] | None:
    """Return the stage for long appends and the number of tokens it is asked from, None where there is none.

    Raises BundleError when the manifest doesn't say the number.
    """
    entry = manifest.stages.get(PREFILL)
    if entry is None:
        return None
    first = manifest.model.get(PREFILL_FROM)
    if not isinstance(first, int) or isinstance(first, bool) or first < 1:
        raise BundleError(
            f"The bundle's stage prefill is for appends from {first!r} tokens, which is no such number: build it again."
        )
    return entry, first


def open_llm(folder: Path, manifest: Manifest, llm: StageEntry, **how: Any) -> Engine:
    """Open a language model's stage, with the one for long appends where the bundle has it.

    `how` is what `open_engine` takes. Engines of a pair leave the cores to each other when their step is over.
    """
    beside = prefill_stage(manifest)
    if beside is None:
        return open_engine(folder, llm, **how)
    how["share_cores"] = True
    entry, first = beside
    return PairedEngine(open_engine(folder, llm, **how), open_engine(folder, entry, **how), first)
