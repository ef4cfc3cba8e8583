"""The plan of a model on a platform: work, least times and memory of its stages, and whether it fits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgewright.contract import StageContract
from edgewright.errors import UsageError
from edgewright.plan.memory import ENGINE_BYTES, Activations, Memory, cache_bytes
from edgewright.plan.model import AS_ASKED, Model, Variant
from edgewright.plan.roofline import Bound, Limits, bound
from edgewright.plan.work import Call, Widths, Work
from edgewright.targets.platform import Platform

PROMPT_TOKENS = 512


@dataclass(frozen=True)
class Request:
    """What is asked: sizes of a run, and what is known better than the platform's file, in bytes and bytes a second.

    `context` None is what the model was built for. `prompt` None is 512 tokens, or as many as there is room for; of a
    policy the longest prompt it takes.
    """

    context: int | None = None
    batch: int = 1
    prompt: int | None = None
    memory_bytes: int | None = None
    bandwidth: float | None = None
    efficiency: float = 1.0


@dataclass(frozen=True)
class StagePlan:
    """What one stage does in all its runs: `tokens` are those that it takes or gives, None where there are none."""

    name: str
    stage: str
    times: int
    tokens: int | None
    work: tuple[Work, ...] = field(repr=False)
    bound: Bound

    @property
    def macs(self) -> int:
        """Multiply-adds of all runs."""
        return self.times * sum(work.macs for work in self.work)

    def moved(self, part: str) -> int:
        """Return the bytes of weights, cache or activations that move in all runs."""
        return self.times * sum(int(getattr(work, f"{part}_bytes")) for work in self.work)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON-compatible values."""
        parts = {f"{part}_bytes": self.moved(part) for part in ("weight", "cache", "activation")}
        seconds = self.bound.seconds
        return {
            "name": self.name,
            "stage": self.stage,
            "times": self.times,
            "macs": self.macs,
            **parts,
            "bytes": sum(parts.values()),
            "latency_ms": None if seconds is None else 1000 * seconds,
            "tokens_per_s": self.tokens / seconds if self.tokens and seconds else None,
            "bound_by": self.bound.binding,
            "peaks_not_known": list(self.bound.unknown),
        }


class Estimator:
    """Plans one model on one platform: `stages` for what is asked, `memory` for that or for variants of it.

    `context` is that of a language model, None of a policy. Raises UsageError for sizes that have no meaning.
    """

    def __init__(self, model: Model, platform: Platform, request: Request) -> None:
        self.model, self.platform, self.request = model, platform, request
        self.context = None if model.spec is not None else self._context()
        self.prompt = self._prompt()
        self._found: dict[tuple[str, int, int], Activations] = {}

    @property
    def capacity(self) -> int | None:
        """The memory of the device in bytes, None where it isn't known."""
        if self.request.memory_bytes is not None:
            return self.request.memory_bytes
        if self.platform.this_machine:
            return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))
        return self.platform.memory_bytes

    def _context(self) -> int:
        longest = self.model.contracts["llm"].bounds["capacity"][1]
        asked = self.request.context
        if asked is not None and asked > longest:
            raise UsageError(f"{self.model.path.name} was built for {longest} tokens, not {asked}: build it for more.")
        return asked or longest

    def _prompt(self) -> int:
        asked, spec = self.request.prompt, self.model.spec
        if spec is not None:
            if asked is not None and asked > spec.max_tokens:
                raise UsageError(
                    f"A prompt of {asked} tokens is longer than the {spec.max_tokens} that the policy takes."
                )
            return asked or spec.max_tokens
        assert self.context is not None
        if asked is not None and asked > self.context:
            raise UsageError(
                f"A prompt of {asked} tokens doesn't fit into the context of {self.context}: give a larger --context, "
                "or fewer --prompt-tokens."
            )
        return asked or min(PROMPT_TOKENS, self.context)

    def stages(self) -> list[StagePlan]:
        """Return the plan of every stage, in the order they run."""
        bandwidth = self.request.bandwidth or self.platform.bandwidth_bytes_per_s
        limits = Limits(self.platform, bandwidth, self.request.efficiency)
        found = []
        for name, stage, times, tokens, calls in self._runs():
            work = [item for call in calls for item in self.model.count(stage, call)]
            found.append(StagePlan(name, stage, times, tokens, tuple(work), bound(work, limits, times=times)))
        return found

    def _runs(self) -> Iterator[tuple[str, str, int, int | None, list[Call]]]:
        if self.model.spec is None:
            assert self.context is not None
            batch = self.request.batch
            yield "prefill", "llm", 1, batch * self.prompt, list(self._prefill())
            yield "decode", "llm", 1, batch, [self._call(1, self.context - 1, 1)]
            return
        call = self._policy_call()
        yield "vision", "vision", 1, None, [call]
        yield "prefix", "prefix", 1, None, [call]
        # A stage that is the whole loop says so by its noise.
        looped = any(tensor.name == "noise" for tensor in self.model.contracts["denoise"].inputs)
        yield "denoise", "denoise", 1 if looped else self.model.spec.steps, None, [call]

    @property
    def _fed(self) -> int:
        """The most tokens that are fed at once."""
        return min(self.prompt, self.model.cut or self.prompt)

    def _prefill(self) -> Iterator[Call]:
        for start in range(0, self.prompt, self._fed):
            stop = min(self.prompt, start + self._fed)
            yield self._call(stop - start, start, int(stop == self.prompt))

    def _call(self, seq: int, past: int, positions: int) -> Call:
        sizes = {"batch": self.request.batch, "seq": seq, "positions": positions, "capacity": self.context or 1}
        return Call(sizes, past, Widths(self.model.float_bytes, self.model.cache_width))

    def _policy_call(self) -> Call:
        spec, batch = self.model.spec, self.request.batch
        assert spec is not None
        slots = len(spec.cameras) * spec.image_tokens
        state = any(tensor.name == "state" for tensor in self.model.contracts["prefix"].inputs)
        sizes = {
            "batch": batch,
            "views": batch * len(spec.cameras),
            "image_slots": slots,
            "text": self.prompt,
            "prefix": slots + self.prompt + int(state),
            "horizon": spec.horizon,
            "times": 1,
        }
        return Call(sizes, 0, Widths(self.model.float_bytes, self.model.cache_width))

    def memory(self, variant: Variant = AS_ASKED, *, context: int | None = None) -> Memory:
        """Return the memory for what is asked, or for a variant of the model and another context."""
        weights = self.model.weights(variant)
        width = variant.cache_width or self.model.cache_width
        engine = ENGINE_BYTES.get(self.platform.engine or "", 0)
        if self.model.spec is None:
            assert self.context is not None
            length = context or self.context
            seq = min(self._fed, length)
            kept = cache_bytes(self.model.contracts["llm"], batch=self.request.batch, context=length, cache_width=width)
            return Memory(weights, kept, *self._activations("llm", self._call(seq, length - seq, 1)), engine)
        call = self._policy_call()
        most = max((self._activations(name, call) for name in self.model.contracts), key=sum)
        return Memory(weights, _prefix_bytes(self.model.contracts["prefix"], call, width), *most, engine)

    def _activations(self, stage: str, call: Call) -> tuple[int, int]:
        key = (stage, call.sizes.get("seq", 0), call.sizes.get("positions", 0))
        if key not in self._found:
            self._found[key] = self.model.activations(stage, call)
        return self._found[key].at(call.past, self.platform.engine)


def _prefix_bytes(contract: StageContract, call: Call, width: int) -> int:
    """Return the bytes of a policy's prefix, which the denoise steps read."""
    total = 0
    for tensor in contract.outputs:
        size = width
        for dim in tensor.shape:
            size *= dim if isinstance(dim, int) else call.sizes[dim]
        total += size
    return total


def sizes_of(estimator: Estimator) -> Mapping[str, int]:
    """Return the sizes that a plan is made for, by name."""
    found, spec = {"batch": estimator.request.batch, "prompt_tokens": estimator.prompt}, estimator.model.spec
    if spec is not None:
        return {**found, "cameras": len(spec.cameras), "horizon": spec.horizon, "steps": spec.steps}
    assert estimator.context is not None
    return {"context": estimator.context, **found}
