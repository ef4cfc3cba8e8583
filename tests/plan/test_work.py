from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from executed import executed_macs

from edgewright.checkpoint.policy import PolicyOptions
from edgewright.formats import FloatFormat
from edgewright.plan.shapes import shapes_of
from edgewright.plan.source import Opened, formats_of, open_stages
from edgewright.plan.work import SEMANTIC, Call, Stored, Widths, Work, count, visible
from edgewright.quant.recipe_file import load_recipe
from policy_goldens import OPTIONS, POLICY_CASES, POLICY_GOLDENS, policy_checkpoint

TEXT = Path(__file__).parents[1] / "goldens" / "text"
FAMILIES = sorted(path.name for path in TEXT.iterdir() if (path / "config.json").is_file())
WIDTHS = Widths(activation=4, cache=4)


def planned_text(name: str, context: int = 64) -> Opened:
    return open_stages(TEXT / name, context=context)


def worked(
    name: str, seq: int, past: int, *, positions: int = 1, batch: int = 1, recipe: str = "float32"
) -> list[Work]:
    """The work of one run of a golden."""
    planned = planned_text(name)
    formats = formats_of(planned, load_recipe(recipe), "onnxruntime")
    sizes = {"batch": batch, "seq": seq, "positions": positions, "capacity": 64}
    return count(planned.stages["llm"], Call(sizes, past, WIDTHS), formats["llm"])[0]


def macs(work: list[Work], op: str | None = None) -> int:
    return sum(item.macs for item in work if op in (None, item.op))


def seen(seq: int, past: int, window: int | None) -> int:
    """(row, slot) pairs of a causal attention, counted one by one."""
    rows = range(past, past + seq)
    return sum(slot <= row and (window is None or slot > row - window) for row in rows for slot in range(past + seq))


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
def test_visible_pairs_and_slots(window: int | None) -> None:
    for past, seq in itertools.product((0, 1, 2, 5, 7, 8, 9, 20), (0, 1, 2, 7, 8, 9, 16)):
        pairs, slots = visible(past, seq, window)
        if seq == 0:
            assert pairs == 0
            continue
        assert pairs == seen(seq, past, window), (past, seq)
        first = 0 if window is None else max(0, past - window + 1)
        assert slots == past + seq - first, (past, seq)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_can_be_followed(name: str) -> None:
    planned = planned_text(name)
    stage = planned.stages["llm"]
    for seq, positions in ((9, 1), (9, 0), (1, 1)):
        sizes = {"batch": 2, "seq": seq, "positions": positions, "capacity": 64}
        facts = shapes_of(stage.graph, sizes, SEMANTIC)
        for tensor, value in zip(stage.contract.outputs, stage.graph.outputs, strict=True):
            wanted = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape)
            assert facts[value].shape == wanted, value.name


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text", "cohere2", "deepseek_v2_lite", "gpt2", "phi3"])
@pytest.mark.parametrize(("seq", "past"), [(1, 63), (24, 0), (11, 20)])
def test_macs_are_those_that_run(name: str, seq: int, past: int, tmp_path: Path) -> None:
    """Every product of matrices is counted as ONNX Runtime runs it; only attention runs hidden slots as well."""
    planned = planned_text(name)
    stage = planned.stages["llm"]
    sizes = {"batch": 2, "seq": seq, "positions": 1, "capacity": 64}
    work = count(stage, Call(sizes, past, WIDTHS), {})[0]
    nodes = [node for node in stage.graph if node.op_type == "Attention"]
    dense = hidden = 0
    for node in nodes:
        a = {key: value.value for key, value in node.attributes.items()}
        width = 2 * a["heads"] * (a["head_dim"] + a["value_dim"])
        dense += width * seq * 64
        hidden += width * seen(seq, past, a.get("window"))
    assert nodes
    assert hidden == macs(work, "Attention")
    if "lite" not in name:  # experts run all at once in the portable dialect
        assert sum(executed_macs(stage, sizes, tmp_path, past=past).values()) == macs(work) - hidden + dense


def test_llama_by_hand() -> None:
    hidden, inner, vocab, heads, kv, dim, layers, seq = 40, 44, 97, 4, 2, 10, 3, 24
    attention = heads * 2 * dim * seq * (seq + 1) // 2
    front = hidden * (heads + 2 * kv) * dim
    back = heads * dim * hidden + 3 * hidden * inner
    # The last layer goes on with one position, whose logits are wanted.
    expected = layers * (seq * front + attention) + (layers - 1) * seq * back + back + hidden * vocab
    assert macs(worked("llama", seq, 0)) == expected
    assert macs(worked("llama", seq, 0, positions=0)) == expected - back - hidden * vocab
    assert macs(worked("llama", 1, 63)) == layers * (front + back + heads * 2 * dim * 64) + hidden * vocab


def test_windows_by_hand() -> None:
    """gemma3: two layers of three see 8 slots."""
    work = [item for item in worked("gemma3_text", 1, 40) if item.op == "Attention"]
    heads, kv, dim = 4, 2, 12
    assert [item.macs for item in work] == [heads * 2 * dim * slots for slots in (8, 41, 8)]
    assert [item.cache_bytes for item in work] == [4 * kv * 2 * dim * (slots + 1) for slots in (8, 41, 8)]


def test_routed_experts_by_hand() -> None:
    """mixtral: a token goes to 2 of 5 experts; more tokens reach more of them."""
    hidden, inner, experts, chosen = 40, 14, 5, 2
    whole = 3 * experts * inner * hidden * 4
    for tokens in (1, 2, 16):
        work = [item for item in worked("mixtral", tokens, 0, positions=tokens) if item.op == "Experts"]
        assert [item.macs for item in work] == [tokens * chosen * 3 * inner * hidden] * 2
        share = 1 - (1 - chosen / experts) ** tokens
        assert [item.weight_bytes for item in work] == [pytest.approx(whole * share, abs=3)] * 2
    assert share == pytest.approx(1, abs=1e-3)


def test_recurrent_layers_by_hand() -> None:
    """bamba: layers of Mamba-2 around one of attention."""
    seq, heads, dim, state, kernel, groups = 7, 6, 16, 10, 4, 2
    work = worked("bamba", seq, 0)
    found = [item for item in work if item.op == "StateSpace"]
    assert [item.macs for item in found] == [2 * seq * heads * dim * state] * 2
    assert [item.cache_bytes for item in found] == [2 * 4 * heads * dim * state] * 2
    channels = heads * dim + 2 * groups * state
    assert [item.macs for item in work if item.op == "CausalConv"] == [seq * channels * kernel] * 2
    assert len([item for item in work if item.op == "Attention"]) == 1
    delta = [item for item in worked("qwen3_next", 3, 0) if item.op == "GatedDelta"]
    assert delta
    assert all(item.macs * 2 * 4 == item.cache_bytes * 3 * 3 for item in delta)  # 3 products a token, state both ways


def test_weights_move_as_they_are_stored() -> None:
    hidden, inner, vocab = 40, 44, 97
    plain, packed = worked("llama", 5, 0), worked("llama", 5, 0, recipe="int4")
    for work, linear, row in ((plain, 4 * hidden * inner, 4 * hidden), (packed, 44 * 2 * (16 + 4), 2 * (32 + 4))):
        gate = next(item for item in work if item.module == "model.layers.0.mlp.gate_proj")
        assert gate.weight_bytes == linear
        assert gate.activation_bytes == 4 * 5 * (hidden + inner)
        table = next(item for item in work if item.op == "Embedding")
        assert table.weight_bytes == 5 * row
    assert {item.multiplies for item in plain} == {"float"}
    assert {item.multiplies for item in packed if item.op == "Linear"} == {"int8"}
    assert next(item for item in packed if item.module == "lm_head").macs == hidden * vocab


def test_nothing_moves_for_rows_that_nobody_wants() -> None:
    work = worked("llama", 5, 0, positions=0)
    modules = {item.module for item in work}
    assert "lm_head" not in modules
    assert "model.layers.2.mlp.up_proj" not in modules
    assert "model.layers.2.self_attn.k_proj" in modules


def policy_planned(case: str) -> Opened:
    return open_stages(POLICY_GOLDENS / case / "checkpoint", context=None, options=PolicyOptions(**OPTIONS[case]))


@pytest.mark.parametrize("case", POLICY_CASES)
def test_macs_of_policies_are_those_that_run(case: str, tmp_path: Path) -> None:
    planned = policy_planned(case)
    spec = planned.spec
    assert spec is not None
    state = any(tensor.name == "state" for tensor in planned.stages["prefix"].contract.inputs)
    slots = 2 * spec.image_tokens
    sizes = {"batch": 1, "views": 2, "image_slots": slots, "text": 9, "prefix": slots + 9 + state, "times": 1}
    sizes["horizon"] = spec.horizon
    for name, stage in planned.stages.items():
        work = count(stage, Call(sizes, 0, WIDTHS), {})[0]
        ran = executed_macs(stage, sizes, tmp_path / name)
        assert ran
        assert sum(ran.values()) == macs(work), name


def test_pi05_by_hand() -> None:
    """The last layer of the prefix makes keys and values alone; the denoise step reads them."""
    planned = policy_planned("pi05")
    sizes, tokens = policy_checkpoint("pi05").sizes, 20
    text = sizes.text
    call = Call({"batch": 1, "image_slots": 12, "text": 8, "prefix": tokens, "views": 3}, 0, Widths(4, 1))
    work = count(planned.stages["prefix"], call, {})[0]
    kv = 2 * text.kv_heads * text.head_dim
    whole = text.width * (2 * text.heads * text.head_dim + kv + 3 * text.inner)
    attention = 2 * text.heads * text.head_dim * tokens * tokens
    expected = (text.layers - 1) * (tokens * whole + attention) + tokens * text.width * kv
    assert macs(work) == expected
    written = sum(item.cache_bytes for item in work)
    assert written == text.layers * kv * tokens
    call = Call({"batch": 1, "horizon": 6, "times": 1, "prefix": tokens}, 0, Widths(4, 1))
    step = [item for item in count(planned.stages["denoise"], call, {})[0] if item.op == "MixedAttention"]
    assert [item.cache_bytes for item in step] == [kv * tokens] * sizes.expert.layers
    assert {item.macs for item in step} == {2 * text.heads * text.head_dim * 6 * (tokens + 6)}


def test_stored_weights_are_found_by_module_and_name() -> None:
    """A head that is tied to the table reads the table's tensor, in a format of its own."""
    planned = planned_text("gemma3_text")
    stage = planned.stages["llm"]
    table = next(node for node in stage.graph if node.op_type == "Embedding").inputs[1]
    assert table is not None
    stored = {f"lm_head:{table.name}": Stored(FloatFormat("float16"), 777, "float")}
    sizes = {"batch": 1, "seq": 1, "positions": 1, "capacity": 64}
    work = count(stage, Call(sizes, 0, WIDTHS), stored)[0]
    assert next(item for item in work if item.module == "lm_head").weight_bytes == 777
    assert np.all([item.weight_bytes != 777 for item in work if item.module != "lm_head"])
