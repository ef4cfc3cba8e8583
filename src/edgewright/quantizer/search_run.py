"""A search from a checkpoint to a mix: what each format of each module costs and loses, the choice, its measurement."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from edgewright.checkpoint import Checkpoint
from edgewright.errors import UsageError
from edgewright.files import os_errors, scratch_folder
from edgewright.formats import Array, FloatFormat, Format
from edgewright.graph.writer import layout_size, plan_layout
from edgewright.models import build_llm
from edgewright.progress import SILENT, Progress
from edgewright.quant.recipe import Algorithm, Recipe
from edgewright.quantizer.candidates import Candidate, Decision, Roundings, algorithms_of, decisions_of
from edgewright.quantizer.cost import Latency, aligned_bytes, file_bytes
from edgewright.quantizer.evaluate import Evaluator, LocalEvaluator, Mix
from edgewright.quantizer.judge import Judgement
from edgewright.quantizer.plan import Plan, plan_of
from edgewright.quantizer.ray_pool import RayEvaluator, ray_cluster
from edgewright.quantizer.search import Budget, Option, assign, total_cost, total_kl
from edgewright.quantizer.search_check import Check, check_search
from edgewright.quantizer.sensitivity import Sensitivities, sensitivities
from edgewright.quantizer.stream import FloatModel, Spool

#: Rows the noise is measured on, the share of the held-out tokens they have together, and the fewest of a row.
PROBES, _PROBE_SHARE, _PROBE_TOKENS = 4, 16, 16
#: Bytes the float model's kept predictions may take.
_REFERENCE_BYTES = 512e6


@dataclass(frozen=True)
class Request:
    """What is asked for; `base` gives the algorithm and what the recipe says besides formats."""

    budget: Budget
    formats: tuple[Candidate, ...]
    base: Recipe | None = None
    check: bool = False
    ray: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Found:
    """A mix: every decision's format, what it was estimated and measured to cost and lose.

    `bytes` is the size of the weight file. `evaluations` counts full evaluations, `probing` what the estimate took in
    such evaluations (its tokens times layers over theirs); the pass that collects statistics, which quantizing needs
    in any case, is not in it. `seconds` is estimated and measured latency, of a latency budget.
    """

    decisions: tuple[Decision, ...]
    chosen: Mapping[str, Candidate]
    options: Mapping[str, Option]
    algorithms: Mapping[str, Algorithm]
    estimated_kl: float
    judgement: Judgement
    bytes: int
    evaluations: int
    probing: float
    seconds: tuple[float, float] | None = None
    check: Check | None = None


def search(
    checkpoint: Checkpoint,
    rows: Sequence[Array],
    held_out: Sequence[Array],
    request: Request,
    *,
    progress: Progress = SILENT,
) -> Found:
    """Find the mix of formats that meets a budget at the least loss.

    Statistics come from `rows`; the mix is measured on `held_out`, and the noise on their first tokens; int64
    `[tokens]` each. Raises UsageError
    for a budget that can't be met, and the package's other errors.
    """
    with ExitStack() as stack:
        stack.enter_context(os_errors("the search's work"))
        folder = stack.enter_context(scratch_folder())
        if request.ray is not None:
            stack.enter_context(ray_cluster(request.ray))
        return _Search(checkpoint, rows, held_out, request, folder, progress, stack).run()


@dataclass
class _Costs:
    """What options cost, and what is there whatever is chosen."""

    of: dict[tuple[str, Format], float] = field(default_factory=dict)
    fixed: float = 0.0


class _Search:
    def __init__(
        self,
        checkpoint: Checkpoint,
        rows: Sequence[Array],
        held_out: Sequence[Array],
        request: Request,
        folder: Path,
        progress: Progress,
        stack: ExitStack,
    ) -> None:
        self._stack = stack
        self._checkpoint, self._request, self._progress = checkpoint, request, progress
        self._rows, self._held_out, self._folder = rows, held_out, folder
        keep = FloatFormat("float32")
        stage = build_llm(checkpoint, max_context=max(len(row) for row in (*rows, *held_out)))
        self._plan: Plan = plan_of(stage, request.base or Recipe("search", keep, keep, keep))
        self._decisions = decisions_of(self._plan, request.formats)
        self._algorithms = algorithms_of(self._plan, request.base)
        self._stage = stage
        self._vocab = int(stage.contract.outputs[0].shape[-1])
        self._latency = Latency(folder, request.threads or os.cpu_count() or 1)

    def run(self) -> Found:
        budget = self._request.budget
        with self._progress.step("costs of formats"):
            costs = self._costs()
        if budget.kind != "kl":  # refuse before anything takes long
            assign(self._options(costs, None), budget, costs.fixed)
        with self._progress.step("float weights", layout_size(plan_layout(self._stage))) as advance:
            model = FloatModel(self._stage, self._folder / "model", advance, self._request.threads)
        roundings = Roundings(self._folder / "rounded", self._algorithms)
        known = self._estimate(model, roundings)
        evaluator = self._evaluator(model, roundings)
        options = self._options(costs, known)
        if budget.kind == "kl":
            chosen, judgement = self._within_loss(options, costs, evaluator)
        else:
            chosen = self._within_cost(options, costs)
            (judgement,) = evaluator.evaluate([self._mix(chosen)])
        probing = known.work / (sum(map(len, self._held_out)) * len(self._plan.segments))
        searched = evaluator.evaluations
        formats = self._formats(chosen)
        with self._progress.step("size of the mix"):
            size = file_bytes(self._checkpoint, formats)
        seconds = None
        if budget.kind == "latency":
            with self._progress.step("latency of the mix"):
                measured = self._latency.step(self._checkpoint, formats, "chosen")
            seconds = (total_cost(chosen, costs.fixed), measured)
        check = None
        if self._request.check:
            check = check_search(self._decisions, options, chosen, judgement, evaluator, probing + searched)
        candidates = {d.name: next(c for c in d.options if c.format == chosen[d.name].format) for d in self._decisions}
        return Found(
            decisions=tuple(self._decisions),
            chosen=candidates,
            options=chosen,
            algorithms=self._algorithms,
            estimated_kl=total_kl(chosen),
            judgement=judgement,
            bytes=size,
            evaluations=searched,
            probing=probing,
            seconds=seconds,
            check=check,
        )

    def _costs(self) -> _Costs:
        """Return the costs in the budget's measure: bytes, or seconds."""
        costs = _Costs()
        timed = self._request.budget.kind == "latency"
        for decision in self._decisions:
            for candidate in decision.options:
                fmt = candidate.format
                costs.of[decision.name, fmt] = (
                    self._latency.of(decision, fmt) if timed else aligned_bytes(decision, fmt)
                )
        cheapest = {
            decision.name: min(
                (candidate.format for candidate in decision.options), key=lambda fmt: costs.of[decision.name, fmt]
            )
            for decision in self._decisions
        }
        formats = {t.module: cheapest[d.name] for d in self._decisions for t in d.targets}
        whole = (
            self._latency.step(self._checkpoint, formats, "cheapest")
            if timed
            else float(file_bytes(self._checkpoint, formats))
        )
        costs.fixed = whole - math.fsum(costs.of[name, fmt] for name, fmt in cheapest.items())
        return costs

    def _estimate(self, model: FloatModel, roundings: Roundings) -> Sensitivities:
        # GPTQ fits the rows it calibrates on, so noise is measured on others.
        probed = self._held_out[:PROBES]
        length = max(_PROBE_TOKENS, sum(map(len, self._held_out)) // (len(probed) * _PROBE_SHARE))
        formats = {t.module: [c.format for c in d.options] for d in self._decisions for t in d.targets}
        spool = Spool(self._folder / "spool")
        probes = [row[:length] for row in probed]
        return sensitivities(model, self._plan, self._rows, probes, formats, roundings, spool, progress=self._progress)

    def _evaluator(self, model: FloatModel, roundings: Roundings) -> Evaluator:
        tokens = sum(map(len, self._held_out))
        stride = max(1, math.ceil(4 * tokens * self._vocab / _REFERENCE_BYTES))
        if self._request.ray is not None:
            there = RayEvaluator(
                self._checkpoint, model, roundings, self._held_out, stride=stride, progress=self._progress
            )
            self._stack.callback(there.close)
            return there
        return LocalEvaluator(model, roundings, self._held_out, self._folder, stride=stride, progress=self._progress)

    def _options(self, costs: _Costs, known: Sensitivities | None) -> dict[str, list[Option]]:
        """Return the options of every decision, without losses as long as nothing is known of them."""

        def loss(decision: Decision, fmt: Format) -> float:
            return 0.0 if known is None else max(0.0, math.fsum(known.kl[t.module, fmt] for t in decision.targets))

        return {
            decision.name: [
                Option(c.format, costs.of[decision.name, c.format], loss(decision, c.format)) for c in decision.options
            ]
            for decision in self._decisions
        }

    def _within_cost(self, options: Mapping[str, Sequence[Option]], costs: _Costs) -> dict[str, Option]:
        """Return the choice whose weight file fits; what neighbouring tensors share or leave free is settled here."""
        budget = self._request.budget
        chosen = assign(options, budget, costs.fixed)
        if budget.kind == "latency":
            return chosen
        best = None
        for _ in range(4):
            size = file_bytes(self._checkpoint, self._formats(chosen))
            if size <= budget.limit and (best is None or total_kl(chosen) < total_kl(best)):
                best = chosen
            missed = size - total_cost(chosen, costs.fixed)
            if abs(missed) < 1:
                break
            costs.fixed += missed
            try:
                chosen = assign(options, budget, costs.fixed)
            except UsageError:
                break
        if best is None:
            best = {name: min(o, key=lambda option: option.cost) for name, o in options.items()}
        return best

    def _within_loss(
        self, options: Mapping[str, Sequence[Option]], costs: _Costs, evaluator: Evaluator
    ) -> tuple[dict[str, Option], Judgement]:
        """Return the smallest mix that measures within the KL; the estimate is scaled by what was measured."""
        limit = self._request.budget.limit
        finest = {name: min(o, key=lambda option: (option.kl, option.cost)) for name, o in options.items()}
        best: tuple[dict[str, Option], Judgement] | None = None
        least = math.fsum(min(option.cost for option in o) for o in options.values())
        tried: list[dict[str, Option]] = []
        scale = 1.0
        # Ever more cautious; a limit that isn't met by then gets the finest there is.
        for margin in (1.0, 0.9, 0.5, None):
            if margin is None and best is not None:
                break
            chosen = finest if margin is None else _at_most(options, margin * limit / scale, finest)
            if chosen in tried:
                continue
            tried.append(chosen)
            (judgement,) = evaluator.evaluate([self._mix(chosen)])
            if judgement.kl <= limit and (best is None or total_cost(chosen) < total_cost(best[0])):
                best = (chosen, judgement)
            if judgement.kl > limit and chosen == finest:
                break
            if judgement.kl <= limit and (judgement.kl >= 0.9 * limit or total_cost(chosen) <= least):
                break
            scale = max(judgement.kl, 1e-12) / max(total_kl(chosen), 1e-30)
        if best is None:
            raise UsageError(
                f"The budget can't be met: with the finest of the formats the KL measures {judgement.kl:.3g} and the "
                f"budget is {limit:g}: allow more, or finer formats."
            )
        return best

    def _mix(self, chosen: Mapping[str, Option]) -> Mix:
        return [(t, chosen[d.name].format) for d in self._decisions for t in d.weights.values()]

    def _formats(self, chosen: Mapping[str, Option]) -> dict[str, Format]:
        return {t.module: chosen[d.name].format for d in self._decisions for t in d.targets}


def _at_most(options: Mapping[str, Sequence[Option]], limit: float, finest: dict[str, Option]) -> dict[str, Option]:
    """Return the cheapest choice of so much estimated loss, or the finest where all lose more."""
    try:
        return assign(options, Budget("kl", limit))
    except UsageError:
        return finest
