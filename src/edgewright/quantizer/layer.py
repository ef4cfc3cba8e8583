"""One segment of a model, quantized: factors are folded, weights rounded, what was lost is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from edgewright.checkpoint.tensor import DTYPES
from edgewright.errors import CheckpointError, RecipeError
from edgewright.formats import Array, BlockFormat, FloatFormat, Format, IntFormat, LinearInput, Parts
from edgewright.quant.algorithms import (
    Rounder,
    awq_factors,
    damped,
    decoded,
    effective,
    for_outputs,
    largest,
    smoothing_factors,
    solve,
    static_scale,
    tied_by_head,
)
from edgewright.quant.moments import Moments
from edgewright.quant.recipe import Transforms
from edgewright.quantizer.plan import Fold, Group, Target
from edgewright.quantizer.report import NONE, SHARED, TAKEN, ModuleReport, measure

#: Modules that are rounded at once.
_THREADS = 2
#: Gives a float parameter as it is now, by name.
Weights = Callable[[str], Array]
#: Gives the parts of a module that an earlier segment rounded.
Codes = Callable[[str], Parts]


@dataclass(frozen=True)
class Rounded:
    """A module's result: parts in a format (none where another has them), or floats; what its input goes through."""

    target: Target
    format: Format
    parts: Parts
    input: LinearInput | None
    report: ModuleReport
    #: Mean output error float64 `[rows]`, where the mean input is known.
    missing: Array | None


@dataclass
class Outcome:
    """What became of a segment: results by module, and float parameters that changed.

    `rows` are the factors that were folded into the rows of a weight, and so into what it makes, by its name.
    """

    modules: list[Rounded] = field(default_factory=list)
    changed: dict[str, Array] = field(default_factory=dict)
    biases: list[str] = field(default_factory=list)
    rows: dict[str, Array] = field(default_factory=dict)


def quantize_segment(
    groups: Sequence[Group],
    moments: Mapping[str, Moments],
    weight: Weights,
    transforms: Transforms,
    codes: Codes | None = None,
) -> Outcome:
    """Quantize the modules of one segment; `moments` are by input value. Raises errors that name the module.

    `codes` is needed where a head shares the codes of a table.
    """
    outcome = Outcome()

    def now(name: str) -> Array:
        return outcome.changed[name] if name in outcome.changed else weight(name)

    # NumPy leaves the interpreter while it computes. Factors are found for the weights as they came and folded in
    # order; modules are independent from there on.
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda group: _factors(group, moments.get(group.value), weight, transforms), groups))
        scaled = {
            group.value: _scale(group, moments.get(group.value), factors, now, outcome)
            for group, factors in zip(groups, found, strict=True)
        }
        todo = [(target, scaled[group.value]) for group in groups for target in group.targets]
        # The longest first, so that no thread is left with it alone.
        waiting = {
            index: pool.submit(_round, *todo[index], now, codes)
            for index in sorted(range(len(todo)), key=lambda index: -_work(todo[index][0]))
        }
        outcome.modules = [waiting[index].result() for index in range(len(todo))]
    if transforms.bias_correction:
        for done in outcome.modules:
            _correct_bias(done, now, outcome)
    return outcome


def _work(target: Target) -> int:
    """Return about how long a module takes: its second moment is factorised, its rows are carried through that."""
    rows, width = target.shape
    return (rows + width) * width * width


def _factors(group: Group, moments: Moments | None, weight: Weights, transforms: Transforms) -> Array | None:
    """Return the factors for a group's weights, or None where none are wanted or none can be applied."""
    targets = group.scalable
    if not targets or moments is None or not moments.tokens:
        return None
    tie = _tie(group.fold)
    if transforms.smoothing is not None and any(t.choice.inputs.format for t in targets):
        weights = [_finite(weight(t.weight), t.weight) for t in targets]
        factors = smoothing_factors(weights, moments, transforms.smoothing)
        factors = factors if tie is None else tie(factors)
    elif all(t.choice.algorithm.name == "awq" for t in targets) and moments.second is not None:
        spans = [t.choice.weight.span(t.shape[1]) for t in targets if isinstance(t.choice.weight, BlockFormat)]
        weights = [_finite(weight(t.weight), t.weight) for t in targets]
        factors, _ = awq_factors(weights, moments, [_rounder(t) for t in targets], spans, tie)
    else:
        return None
    return None if np.all(factors == 1) else factors


def _scale(group: Group, moments: Moments | None, factors: Array | None, now: Weights, outcome: Outcome) -> _Scaled:
    """Multiply a group's weights by factors and fold the inverse; modules kept as floats join in only where it folds,
    because their own input is left alone otherwise."""
    if moments is None or factors is None:
        return _Scaled(moments, moments, None, able=bool(group.scalable))
    inverse = (1 / factors.astype(np.float64)).astype(np.float32)
    folded = _fold(group.fold, inverse, now, outcome)
    for target in group.targets if folded else group.scalable:
        outcome.changed[target.weight] = now(target.weight) * factors
    scaled = moments.scaled(inverse)
    return _Scaled(scaled, scaled if folded else moments, None if folded else inverse)


@dataclass(frozen=True)
class _Scaled:
    """The statistics of a group's inputs as they are now, those of modules kept as floats, the factors left for the
    graph, and whether factors had a place at all."""

    moments: Moments | None
    plain: Moments | None
    multiply: Array | None
    able: bool = True


def _tie(fold: Fold | None) -> Callable[[Array], Array] | None:
    if fold is None or fold.heads is None:
        return None
    heads, kv_heads = fold.heads
    return lambda factors: tied_by_head(factors, heads, kv_heads)


def _rounder(target: Target) -> Rounder:
    """Return the rounding AWQ's search looks at: the one that will be done."""
    fmt, algorithm = target.choice.weight, target.choice.algorithm
    assert isinstance(fmt, BlockFormat)

    def rounded(weight: Array, second: Array) -> Array:
        shared = fmt.survey(float(np.abs(weight).max()))
        parts = for_outputs(weight, fmt, damped(second, algorithm.damping), shared, clip=algorithm.clip)
        return fmt.decode(parts, weight.shape[1])

    return rounded


def _fold(fold: Fold | None, inverse: Array, now: Weights, outcome: Outcome) -> bool:
    """Multiply what makes the input by `inverse`; tells whether there was such a place."""
    if fold is None:
        return False
    if fold.heads is not None:
        heads, kv_heads = fold.heads
        inverse = inverse.reshape(kv_heads, heads // kv_heads, -1)[:, 0].reshape(-1)
    for name in fold.vectors:
        outcome.changed[name] = now(name) * inverse
    for name in fold.rows:
        outcome.changed[name] = now(name) * inverse[:, None]
        outcome.rows[name] = inverse
    return True


def _round(target: Target, scaled: _Scaled, now: Weights, codes: Codes | None) -> Rounded:
    """Round one module, or take over the codes it has already."""
    weight, wanted, choice = _finite(now(target.weight), target.weight), target.choice.weight, target.choice
    if isinstance(wanted, FloatFormat):
        return _as_float(target, wanted, weight, scaled.plain)
    if not isinstance(wanted, BlockFormat):
        raise RecipeError(f"{choice.where['weight']}: {target.module} can't be kept as stored while it is calibrated.")
    moments = scaled.moments
    through = _through(target, moments, scaled.multiply)
    if isinstance(wanted, IntFormat) and through is not None and through.activation is not None:
        wanted = replace(wanted, int8_activations=False)
    parts, done = _parts(target, wanted, weight, scaled, codes)
    values = decoded(parts, wanted, target.shape)
    report = measure(target, wanted, weight, values, moments, done)
    known = moments is not None and moments.tokens and target.op == "Linear" and target.taken is None
    missing = (weight - values) @ moments.mean if known and moments is not None else None
    return Rounded(target, wanted, {} if target.codes_of is not None else parts, through, report, missing)


def _parts(target: Target, fmt: BlockFormat, weight: Array, scaled: _Scaled, codes: Codes | None) -> tuple[Parts, str]:
    """Return a module's parts, and the name of what found them."""
    if target.codes_of is not None:
        assert codes is not None
        return codes(target.codes_of), SHARED
    if target.taken is not None:
        return target.taken(), TAKEN
    try:
        parts = solve(weight, fmt, target.choice.algorithm, scaled.moments, target.module)
    except FloatingPointError as error:
        raise CheckpointError(f"{target.module} can't be quantized: {error}.") from None
    name = effective(target.choice.algorithm, scaled.moments).name
    return parts, "awq clips alone" if name == "awq" and not scaled.able else name


def _as_float(target: Target, fmt: FloatFormat, weight: Array, moments: Moments | None) -> Rounded:
    """Return a module that is kept as floats. Raises CheckpointError where they are too large."""
    with np.errstate(over="ignore"):
        values = weight.astype(DTYPES[fmt.dtype]).astype(np.float32)
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"{target.weight} holds values that are too large for {fmt.dtype}: keep {target.module} in float32 or "
            "bfloat16."
        )
    report = measure(target, fmt, weight, values, moments, NONE)
    return Rounded(target, fmt, {"codes": weight}, _through(target, moments, None), report, None)


def _finite(weight: Array, name: str) -> Array:
    if not np.isfinite(largest(weight)):
        raise CheckpointError(f"{name} holds values that are not finite, so it can't be quantized.")
    return weight


def _through(target: Target, moments: Moments | None, multiply: Array | None) -> LinearInput | None:
    """Return what the module's input goes through in the graph."""
    wish = target.choice.inputs
    if target.kind == "embedding" or target.inner or (wish.format is None and multiply is None):
        return None
    scale = zero = None
    if wish.format is not None and wish.format.static:
        if moments is None:
            raise RecipeError(
                f"{target.choice.where['inputs']}: nothing is known of the inputs of {target.module}, so they can't "
                "have a static scale: choose dynamic activations for it."
            )
        scale, zero = static_scale(moments, wish.format, wish.range)
    return LinearInput(None, multiply, wish.format, scale, zero)


def _correct_bias(done: Rounded, now: Weights, outcome: Outcome) -> None:
    """Add the mean output error of a module to its bias, which it gets if it has none."""
    target, missing = done.target, done.missing
    if missing is None:
        return
    name = target.bias or f"{target.module}.bias"
    if target.bias is None:
        outcome.biases.append(target.module)
        outcome.changed[name] = missing.astype(np.float32)
    else:
        outcome.changed[name] = (now(name) + missing).astype(np.float32)
