"""What is to be done to a stage, in plain values: which modules read which input, and where a factor can be folded.

Made before the stage is lowered, which takes attributes and names apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from edgewright.errors import RecipeError
from edgewright.formats import BlockFormat, Format, IntFormat, Parts, Wanted
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import module_of
from edgewright.ops.experts import EXPERT_WEIGHTS
from edgewright.quant.apply import Use, quantizable
from edgewright.quant.prefix_kv import KEY
from edgewright.quant.producers import ExactProducer, held_exactly
from edgewright.quant.recipe import Choice, Recipe
from edgewright.quantizer.segments import Segment, cut


@dataclass(frozen=True)
class Target:
    """A module whose weight gets a format: its weight's and bias's names, and what the recipe chose for it."""

    module: str
    kind: str
    op: str
    weight: str
    shape: tuple[int, int]
    bias: str | None
    choice: Choice
    #: Whether another module reads the same weight (a tied table and head).
    tied: bool
    #: Whether it reads what experts hold between their products: nothing is known of it, and it stays in float.
    inner: bool = False
    #: Of how many parts of the weight's rows a token uses how many: of experts those it is sent to.
    share: tuple[int, int] = (1, 1)
    #: The module whose codes it reads: a tied head in its table's format has none of its own.
    codes_of: str | None = None
    #: What block format the checkpoint stores it in (a GGUF type), or None for plain numbers.
    stored: str | None = None
    #: Gives the checkpoint's own codes where the format holds them without a second rounding.
    taken: Callable[[], Parts] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Fold:
    """Where 1/s goes when the weights that read an input are multiplied by s.

    `vectors` are parameters that are divided by s, `rows` matrices whose row i is divided by s[i], with their biases
    among the vectors. `heads` (query heads, key/value heads) says that s must be the same for all query heads that
    read one value head; the parameters have one entry a value head then.
    """

    vectors: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    heads: tuple[int, int] | None = None


@dataclass(frozen=True)
class Group:
    """The modules of one segment that read one input value; `fold` is None where a factor has to stay in the graph."""

    value: str
    targets: tuple[Target, ...]
    fold: Fold | None

    @property
    def scalable(self) -> list[Target]:
        """The modules whose weights factors can multiply; none where one of the group bears no factor.

        Experts, tied weights and codes that are taken over bear none; modules kept as floats need none.
        """
        if any(t.op != "Linear" or t.tied or t.taken is not None for t in self.targets):
            return []
        return [target for target in self.targets if isinstance(target.choice.weight, BlockFormat)]


@dataclass(frozen=True)
class KVTap:
    """The keys and values of an attention layer as they enter the cache, or a policy's prefix KV: as rows.

    `rows` is the weight whose rows make the values, where nothing lies between.
    """

    module: str
    key: str
    value: str
    kv_heads: int
    rows: str | None = None


@dataclass(frozen=True)
class Plan:
    """All of it, by segment."""

    segments: tuple[Segment, ...]
    groups: tuple[tuple[Group, ...], ...]
    caches: tuple[tuple[KVTap, ...], ...]

    @property
    def targets(self) -> list[Target]:
        """Every module, in graph order."""
        return [target for groups in self.groups for group in groups for target in group.targets]


def plan_of(
    stage: Stage,
    recipe: Recipe,
    choices: Mapping[str, Choice] | None = None,
    wanted: Sequence[str] | None = None,
) -> Plan:
    """Return the plan of a float stage; raises RecipeError where the recipe doesn't fit.

    `choices` is what the recipe says of every module, where it holds for several stages, which are then checked as one
    (see `check_smoothing`); `wanted` are the outputs that the last segments give.
    """
    uses = quantizable(stage)
    alone = choices is None
    found = recipe.choices([(use.module, use.kind) for use in uses]) if choices is None else choices
    segments = cut(stage, wanted)
    place = {id(node): segment.index for segment in segments for node in segment.nodes}
    targets = _targets(uses, found)
    grouped: list[dict[str, list[tuple[Use, Target]]]] = [{} for _ in segments]
    for use, target in zip(uses, targets, strict=True):
        x = use.node.inputs[0]
        assert x is not None
        assert x.name is not None
        # The inner input of experts is no value of the graph: their down projections stand alone.
        key = f"{x.name}/{use.module}" if target.inner else x.name
        grouped[place[id(use.node)]].setdefault(key, []).append((use, target))
    taken = {target.weight for target in targets if target.taken is not None}
    groups = tuple(tuple(_group(key, members, taken) for key, members in values.items()) for values in grouped)
    caches = tuple(tuple(_caches(segment)) for segment in segments)
    plan = Plan(tuple(segments), groups, caches)
    if alone:
        _check_cache(plan, recipe)
        check_smoothing([plan], recipe)
    _check_shared(plan, recipe)
    return plan


def _targets(uses: Sequence[Use], choices: Mapping[str, Choice]) -> list[Target]:
    """Return what is to be done to every use of a weight, in the same order."""
    count: dict[str, int] = {}
    for use in uses:
        count[use.weight.name] = count.get(use.weight.name, 0) + 1
    targets, coded = [], dict[tuple[str, Format], str]()
    for use in uses:
        target = _target(use, choices[use.module], tied=count[use.weight.name] > 1)
        wanted = target.choice.weight
        if isinstance(wanted, BlockFormat):
            # Codes are the same whether or not a kernel rounds its inputs, as `quantize_stage` has it.
            alike = replace(wanted, int8_activations=True) if isinstance(wanted, IntFormat) else wanted
            first = coded.setdefault((use.weight.name, alike), use.module)
            target = replace(target, codes_of=None if first == use.module else first)
        targets.append(target)
    return targets


def _target(use: Use, choice: Choice, *, tied: bool) -> Target:
    bias = use.node.inputs[2] if use.node.op_type == "Linear" and len(use.node.inputs) > 2 else None
    rows, width = use.weight.shape
    name = bias.name if bias is not None else None
    attributes = {key: attribute.value for key, attribute in use.node.attributes.items()}
    share = (attributes["top_k"], attributes["experts"]) if use.node.op_type == "Experts" else (1, 1)
    inner = use.node.op_type == "Experts" and use.place == EXPERT_WEIGHTS[-1]
    tensor = use.weight.stored()
    stored = tensor.dtype if tensor is not None and getattr(tensor, "format", None) is not None else None
    taken = None
    if isinstance(choice.weight, IntFormat) and held_exactly(tensor, choice.weight) is not None:
        choice = replace(choice, weight=replace(choice.weight, zero_point=False, scales="float32"))
        taken = _taken(use, choice.weight)
    kind, op = use.kind, use.node.op_type
    return Target(
        use.module, kind, op, use.weight.name, (rows, width), name, choice, tied, inner, share, None, stored, taken
    )


def _taken(use: Use, fmt: Wanted) -> Callable[[], Parts]:
    """Return what reads the codes a checkpoint stores, in the layout of `fmt`."""
    assert isinstance(fmt, IntFormat)
    blocks = held_exactly(use.weight.stored(), fmt)
    assert blocks is not None

    def parts() -> Parts:
        producer = ExactProducer(blocks, use.weight, fmt, use.module)
        chunks = [chunk() for chunk in producer.chunks()]
        kinds = [spec.name.rsplit(".", 1)[-1] for spec in producer.specs]
        return {kind: np.concatenate(runs) for kind, runs in zip(kinds, zip(*chunks, strict=True), strict=True)}

    return parts


def _group(value: str, members: Sequence[tuple[Use, Target]], taken: set[str]) -> Group:
    """Return the group of those that read one value; nothing folds into rows whose codes are taken over."""
    fold = _fold(members[0][0].node, [use for use, _ in members])
    if fold is not None and taken & set(fold.rows):
        fold = None
    return Group(value, tuple(target for _, target in members), fold)


def check_smoothing(plans: Sequence[Plan], recipe: Recipe) -> None:
    """Refuse a recipe that smooths inputs where no stage has any that are rounded."""
    every = [group for plan in plans for groups in plan.groups for group in groups]
    smoothing = recipe.transforms.smoothing is not None
    if smoothing and not any(target.choice.inputs.format for group in every for target in group.scalable):
        raise RecipeError(
            f"{recipe.lines.get('transforms', recipe.name)}: smoothing moves outliers out of rounded inputs, and this "
            "recipe rounds no input of a quantized linear: ask for activations, or leave smoothing out."
        )


def _check_cache(plan: Plan, recipe: Recipe) -> None:
    if recipe.kv is not None and not any(plan.caches):
        raise RecipeError(
            f"{recipe.lines.get('kv', recipe.name)}: the model has no key/value cache to quantize: leave 'kv' out, or "
            "extend the recipe by one of your own that says 'kv: none'."
        )


def _check_shared(plan: Plan, recipe: Recipe) -> None:
    smoothing = recipe.transforms.smoothing is not None
    for group in (group for groups in plan.groups for group in groups):
        if not (smoothing and any(target.choice.inputs.format for target in group.scalable)):
            _check_awq(group)


def _check_awq(group: Group) -> None:
    """Refuse AWQ for some of the quantized linears that read one input: they must share its factors."""
    asked = [target for target in group.scalable if target.choice.algorithm.name == "awq"]
    others = [target for target in group.scalable if target not in asked]
    if asked and others:
        names = ", ".join(target.module for target in others)
        one = len(others) == 1
        raise RecipeError(
            f"{asked[0].choice.where['algorithm']}: awq scales the input of {asked[0].module}, which {names} "
            f"{'reads' if one else 'read'} too ({others[0].choice.algorithm.name} by "
            f"{others[0].choice.where['algorithm']}): choose awq for all of them, or for none."
        )


def _caches(segment: Segment) -> list[KVTap]:
    taps = []
    for node in segment.nodes:
        key, value = _kept_rows(node)
        if key is None or value is None:
            continue
        heads = node.attributes["kv_heads"].value
        maker = value.producer()
        weight = maker.inputs[1] if maker is not None and maker.domain == EW and maker.op_type == "Linear" else None
        rows = None if weight is None else weight.name
        taps.append(KVTap(module_of(node), str(key.name), str(value.name), int(heads), rows))
    return taps


def _kept_rows(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """Return keys and values as rows where an attention's are kept: a cache's, or a policy's prefix KV.

    Those are what the prefix stage gives, and what SmolVLA's expert makes of them alone, which a build may have made
    with the prefix.
    """
    if node.domain != EW or node.op_type not in ("Attention", "MixedAttention"):
        return None, None
    _, k, v, prefix_key, prefix_value = (*node.inputs, *[None] * 5)[:5]
    if node.op_type == "Attention":
        return k, v
    if k is None and prefix_key is not None and prefix_key.is_graph_output():
        return _rows_behind(prefix_key), _rows_behind(prefix_value)
    maker = k.producer() if k is not None and prefix_key is None else None
    source = _rows_behind(maker.inputs[0]) if maker is not None else None
    of_prefix = source is not None and source.is_graph_input() and str(source.name).startswith(KEY)
    return (k, v) if of_prefix else (None, None)


def _rows_behind(value: ir.Value | None) -> ir.Value | None:
    """Return what a value was before its axes were laid out anew."""
    maker = value.producer() if value is not None else None
    while maker is not None and maker.domain == "" and maker.op_type in ("Reshape", "Transpose"):
        value = maker.inputs[0]
        maker = value.producer() if value is not None else None
    return value


def _fold(node: ir.Node, uses: Sequence[Use]) -> Fold | None:
    """Return where a factor on the input of all `uses` can be folded, or None."""
    x = node.inputs[0]
    assert x is not None
    if any(use.node.op_type != "Linear" for use in uses) or x.is_graph_output():
        return None
    if {id(use.node) for use in uses} != {id(use.node) for use in x.uses()}:
        return None  # somebody else reads it
    maker = x.producer()
    while maker is not None and maker.op_type == "Gather" and maker.domain == "":
        x = maker.inputs[0]  # some positions of it
        if x is None or len(x.uses()) != 1 or maker.attributes["axis"].value != 1:
            return None
        maker = x.producer()
    if maker is None or maker.domain != EW:
        return None
    if maker.op_type in ("RMSNorm", "LayerNorm") and maker.attributes.get("group") is None:
        names = [value.name for value in maker.inputs[1:] if value is not None]
        weights = [value for value in maker.inputs[1:] if value is not None]
        if not names or any(len(value.uses()) > 1 or value.shape is None or len(value.shape) != 1 for value in weights):
            return None
        return Fold(vectors=tuple(str(name) for name in names))
    if maker.op_type == "GatedActivation":
        return _rows(maker.inputs[1], None)
    # With a prefix, values come from there as well, and nothing folds.
    alone = maker.op_type == "MixedAttention" and all(value is None for value in maker.inputs[3:5])
    if (maker.op_type == "Attention" or alone) and maker.inputs[1] is not None:
        attributes = {name: attribute.value for name, attribute in maker.attributes.items()}
        return _rows(maker.inputs[2], (attributes["heads"], attributes["kv_heads"]))
    return None


def _rows(value: ir.Value | None, heads: tuple[int, int] | None) -> Fold | None:
    """Return the fold into the rows of the linear that makes `value`, if it is one that nobody else reads."""
    maker = value.producer() if value is not None else None
    if value is None or maker is None or maker.domain != EW or maker.op_type != "Linear" or len(value.uses()) != 1:
        return None
    weight, bias = maker.inputs[1], maker.inputs[2] if len(maker.inputs) > 2 else None
    if weight is None or len(weight.uses()) != 1 or (bias is not None and len(bias.uses()) != 1):
        return None
    return Fold((str(bias.name),) if bias is not None else (), (str(weight.name),), heads)
