"""What is run to profile a bundle, the same with and without the timing of layers.

Token ids are random and seeded. Of a language model a prefill is run again and again after the same tokens, and decode
goes on token by token; of a policy every stage gets tensors of the sizes it was built for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgewright.bundle import Manifest
from edgewright.contract import StageContract
from edgewright.errors import UsageError
from edgewright.profile.record import Called
from edgewright.runtime.embedding import embedding_of
from edgewright.runtime.engine import Array, Engine, array_dtype, zeros
from edgewright.runtime.policy.spec import PolicySpec
from edgewright.runtime.policy.stages import STAGES
from edgewright.runtime.session import Session
from edgewright.runtime.vocabulary import vocabulary_of

#: Runs before the first that counts.
WARM_UP = 2
PREFILL_TOKENS, DECODE_AFTER, REPEATS = 512, 32, 20
PHASES = ("prefill", "decode")

Mark = Callable[[], None]


@dataclass(frozen=True)
class Request:
    """What is asked: prefill of `tokens` after `past`, and `repeats` steps of decode after `after` tokens.

    None is 512 and 32 tokens, or as many as there is room for. `stages` are those of a policy, None all of them.
    """

    tokens: int | None = None
    past: int = 0
    after: int | None = None
    repeats: int = REPEATS
    stages: tuple[str, ...] | None = None
    seed: int = 0


@dataclass(frozen=True)
class Ran:
    """A phase that was run: milliseconds of each run that counts, and its place in the record of calls."""

    name: str
    sizes: Mapping[str, int]
    ms: tuple[float, ...]
    calls: tuple[range, ...]


def run_llm(
    folder: Path, manifest: Manifest, engine: Engine, calls: Sequence[Called], request: Request, phase: str, mark: Mark
) -> Ran:
    """Run prefill or decode on an engine that adds to `calls`.

    `mark` is called when runs begin to count, and at the end. Raises UsageError when the context has no room.
    """
    steps = WARM_UP + request.repeats
    tokens, after = _lengths(engine.contract.bounds["capacity"][1], steps, request)
    kept = vocabulary_of(folder, manifest)
    vocab = int(manifest.model["vocab_size"]) if kept is None else len(kept)
    columns = np.random.default_rng(request.seed).integers(0, vocab, max(request.past + tokens, after))
    ids = columns if kept is None else kept.ids[columns]
    held = Session(
        engine,
        first_capacity=request.past + tokens if phase == "prefill" else after + steps,
        vocabulary=kept,
        table=embedding_of(folder, manifest),
    )
    clock = _Clock(calls, mark)
    if phase == "prefill":
        _prefill(held, ids[: request.past + tokens], request.past, steps, clock)
        return clock.taken("prefill", {"tokens": tokens, "past": request.past})
    token = int(held.append(ids[:after])[0].argmax())
    for turn in range(steps):
        with clock.run(counts=turn >= WARM_UP):
            rows = held.append([token if kept is None else int(kept.ids[token])])
        token = int(rows[0].argmax())
    return clock.taken("decode", {"tokens": 1, "past": after + WARM_UP + (request.repeats - 1) // 2})


def _prefill(held: Session, ids: Array, past: int, steps: int, clock: _Clock) -> None:
    """Feed all ids after the first `past` of them, again and again."""
    for turn in range(steps):
        reached = held.rewind(past) if turn else 0
        if reached < past:
            held.append(ids[reached:past], logits="none")
        with clock.run(counts=turn >= WARM_UP):
            held.append(ids[past:])


def _lengths(context: int, steps: int, request: Request) -> tuple[int, int]:
    """Return the tokens of the prefill and those before decode."""
    tokens = min(PREFILL_TOKENS, context - request.past) if request.tokens is None else request.tokens
    after = min(DECODE_AFTER, context - steps) if request.after is None else request.after
    if tokens < 1 or request.past + tokens > context:
        raise UsageError(
            f"A prefill of {max(tokens, 1)} tokens after {request.past} doesn't fit into the context of {context}: "
            "choose smaller --tokens or --past."
        )
    if after < 1 or after + steps > context:
        raise UsageError(
            f"{steps} steps of decode after {max(after, 1)} tokens don't fit into the context of {context}: choose "
            "smaller --decode-after or --repeats."
        )
    return tokens, after


def run_stage(
    spec: PolicySpec, name: str, engine: Engine, calls: Sequence[Called], request: Request, mark: Mark
) -> Ran:
    """Run one stage of a policy; the rest is as in `run_llm`."""
    clock, sizes = _Clock(calls, mark), policy_sizes(spec, engine.contract)
    call = _bound(engine, sizes, np.random.default_rng(request.seed))
    for turn in range(WARM_UP + request.repeats):
        with clock.run(counts=turn >= WARM_UP):
            call()
    return clock.taken(name, sizes)


def asked_phases(request: Request, names: Sequence[str], *, policy: bool) -> tuple[str, ...]:
    """Return the phases to run, in the order they run: prefill and decode, or stages; raises UsageError."""
    known = STAGES if policy else ("llm",)
    wanted = known if request.stages is None else request.stages
    if odd := [name for name in wanted if name not in known or name not in names]:
        raise UsageError(f"The bundle has no stage {odd[0]} to profile: its stages are {', '.join(known)}.")
    return tuple(name for name in known if name in wanted) if policy else PHASES


def policy_sizes(spec: PolicySpec, contract: StageContract) -> dict[str, int]:
    """Return the sizes of a policy's stage for one observation of all cameras and the longest prompt."""
    slots = len(spec.cameras) * spec.image_tokens
    most = {"text": spec.max_tokens, "views": len(spec.cameras), "image_slots": slots, "horizon": spec.horizon}
    tensors = (*contract.inputs, *contract.outputs)
    found: dict[str, int] = {}
    for dim in (dim for tensor in tensors for dim in tensor.shape if isinstance(dim, str)):
        low, high = contract.bounds.get(dim, (1, 1))
        found[dim] = min(max(most.get(dim, high if dim == "prefix" else 1), low), high)
    if "prefix" in found and "text" in found:
        # Whatever stands before the text: the images, and a state that is a token of its own.
        state = any(tensor.name == "state" for tensor in contract.inputs)
        found["prefix"] = slots + found["text"] + int(state)
    return found


def _bound(engine: Engine, sizes: Mapping[str, int], random: np.random.Generator) -> Callable[[], None]:
    """Bind an engine to tensors of these sizes: random floats, masks of ones, and zeros for whatever is an index."""

    def tensors(given: StageContract, *, filled: bool) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for tensor in given.inputs if filled else given.outputs:
            shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in tensor.shape)
            array = zeros(shape, array_dtype(tensor.dtype))
            if filled and tensor.dtype == "float32":
                array[...] = random.standard_normal(shape, np.float32)
            elif filled and "mask" in tensor.name:
                array[...] = 1
            found[tensor.name] = array
        return found

    return engine.bind(tensors(engine.contract, filled=True), tensors(engine.contract, filled=False))


class _Clock:
    """Times runs and remembers which calls of the engine each of them made."""

    def __init__(self, calls: Sequence[Called], mark: Mark) -> None:
        self._calls, self._mark = calls, mark
        self._ms: list[float] = []
        self._places: list[range] = []

    @contextmanager
    def run(self, *, counts: bool) -> Iterator[None]:
        if counts and not self._ms:
            self._mark()
        first, begin = len(self._calls), time.perf_counter()
        yield
        if counts:
            self._ms.append(1000 * (time.perf_counter() - begin))
            self._places.append(range(first, len(self._calls)))

    def taken(self, name: str, sizes: Mapping[str, int]) -> Ran:
        """Return what was timed."""
        self._mark()
        return Ran(name, dict(sizes), tuple(self._ms), tuple(self._places))
