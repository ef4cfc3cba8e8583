"""Some goldens closely: odd splits, growth, copies, batches, older spellings, quantized weights; see test_matrix.py."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from conftest import CASES, TEXT_GOLDENS, ArrayTensor, MakeEngine, arrays, changed, golden, read_config, relative_error
from edgewright.checkpoint import Checkpoint
from edgewright.formats import IntFormat, dequantize, pack, quantize
from edgewright.models import build_llm
from edgewright.quant.recipe import Recipe
from edgewright.quant.recipe_file import load_recipe
from edgewright.runtime.session import Session
from edgewright.verify.metrics import distance

DIALECTS = ("portable", "onnxruntime")
#: Float32 sums in another order than PyTorch's; the largest seen is 3.3e-6.
TOLERANCE = 2e-5

#: One golden of each family, those with windows and caps.
ONE_A_FAMILY = (
    "llama_bias",
    "mistral_window",
    "qwen2_window",
    "qwen3_bf16",
    "gemma3",
    "gemma3_text_softcap",
    "smollm3",
)

#: Goldens that are looked at more closely than the matrix does.
CLOSELY = [
    *(case for case in CASES if read_config(case)["model_type"] in ("llama", "mistral", "qwen2", "qwen3", "smollm3")),
    *(case for case in CASES if case.startswith("gemma3")),
    "cohere2",
    "deepseek_v3",
    "falcon_alibi",
    "gemma4_text",
    "gpt_oss",
    "phi3_longrope",
    "stablelm_parallel",
]
#: Those without the scalings of rope, which quantization of weights does not see.
WITHOUT_ROPE_VARIANTS = [
    case for case in CLOSELY if "_rope_" not in case and case not in ("deepseek_v3", "gemma4_text", "gpt_oss")
]

each_case = pytest.mark.parametrize("case", CLOSELY)
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@each_case
@each_dialect
def test_any_split_gives_the_logits_of_transformers(case: str, dialect: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    ids, logits = reference.ids, reference.logits
    # A first capacity of 24 makes the cache grow twice on the way.
    engine = shared_engine(case, dialect)
    for cuts in ([64], [1, 63], [30, 34], [9, 1, 22, 1, 31], [20, 5, 20, 19]):
        session = Session(engine, first_capacity=24)
        edges = np.cumsum([0, *cuts])
        parts = [session.append(ids[a:b], logits="all") for a, b in itertools.pairwise(edges)]
        # What was computed with a short text's rope isn't in the reference.
        first = next(a for a, b in itertools.pairwise(edges) if b > (engine.contract.rope_switch or 0))
        assert relative_error(np.concatenate(parts)[first:], logits[first:]) < TOLERANCE, cuts
        assert session.length == 64


@each_case
@each_dialect
def test_decoding_gives_the_logits_of_transformers(case: str, dialect: str, shared_engine: MakeEngine) -> None:
    """Against transformers' own prefill of 30 tokens and 34 cached steps, in one session that grows on the way."""
    reference = golden(case)
    engine = shared_engine(case, dialect)
    session = Session(engine, first_capacity=24)
    rows = [session.append(reference.ids[:30], logits="last")]
    rows += [session.append([token]) for token in reference.ids[30:]]
    assert relative_error(np.concatenate(rows), reference.expected["decode_logits"]) < TOLERANCE
    # From an empty cache, too; what a short text's rope gives isn't in the reference.
    session.truncate(0)
    start = engine.contract.rope_switch or 0
    first = np.concatenate([session.append([token]) for token in reference.ids[: start + 20]])
    assert relative_error(first[start:], reference.logits[start : start + 20]) < TOLERANCE


@each_case
@each_dialect
def test_truncated_copied_and_batched_sessions(case: str, dialect: str, shared_engine: MakeEngine) -> None:
    reference = golden(case)
    ids, logits = reference.ids, reference.logits
    engine = shared_engine(case, dialect)
    session = Session(engine, first_capacity=7)
    wrong = (ids + 1) % session.vocab_size
    # Truncation forgets: wrong tokens are fed, taken back and replaced by the right ones.
    session.append(ids[:21], logits="none")
    session.append(wrong[21:50], logits="none")
    session.truncate(21)
    assert relative_error(session.append(ids[21:40], logits="all"), logits[21:40]) < TOLERANCE
    # A copy goes its own way and leaves the original alone.
    twin = session.copy()
    twin.append(wrong[40:60], logits="none")
    assert relative_error(session.append(ids[40:], logits="all"), logits[40:]) < TOLERANCE
    assert (session.length, twin.length) == (64, 60)
    twin.truncate(40)
    assert relative_error(twin.append(ids[40:41]), logits[40:41]) < TOLERANCE
    # Three sequences at once: prefill, a continued prefill, decode.
    batch = Session(engine, batch=3, first_capacity=5)
    ids_b, logits_b = reference.expected["ids_b"], reference.expected["logits_b"]
    parts = [batch.append(ids_b[:, :11], logits="all"), batch.append(ids_b[:, 11:15], logits="all")]
    parts += [batch.append(ids_b[:, i : i + 1]) for i in range(15, 20)]
    assert relative_error(np.concatenate(parts, axis=1), logits_b) < TOLERANCE
    one = batch.copy()
    one.truncate(19)
    assert relative_error(one.append(ids_b[:, 19:]), logits_b[:, 19:]) < TOLERANCE


@pytest.mark.parametrize("case", [case for case in CASES if (TEXT_GOLDENS / case / "config.v4.json").exists()])
def test_the_older_spelling_of_the_config_is_the_same_model(case: str, make_engine: MakeEngine) -> None:
    reference = golden(case)
    older = dataclasses.replace(reference.checkpoint, config=read_config(case, "config.v4.json"))
    session = Session(make_engine(older))
    assert relative_error(session.append(reference.ids, logits="all"), reference.logits) < TOLERANCE


@pytest.mark.parametrize("case", WITHOUT_ROPE_VARIANTS)
def test_float16_and_int8_weights(case: str, make_engine: MakeEngine) -> None:
    """Largest figures seen: float16 0.41 % of the largest logit and 6e-6 nats, int8 12 % and 0.0082 nats."""
    reference = golden(case)
    for recipe, error, kl in (("float16", 0.008, 2e-5), ("int8", 0.2, 0.02)):
        session = Session(make_engine(reference.checkpoint, "onnxruntime", recipe))
        d = distance(session.append(reference.ids, logits="all"), reference.logits)
        assert d.max_error < error, (recipe, d)
        assert d.kl < kl, (recipe, d)


@pytest.mark.parametrize("name", ["float16", "int8"])
@pytest.mark.parametrize("case", ["llama_bias", "qwen2_window", "gemma3_text_softcap"])
def test_portable_float16_and_int8_weights(case: str, name: str, make_engine: MakeEngine) -> None:
    """Without the rounding of activations int8 weights cost half as much; the largest KL seen is 0.0031."""
    reference = golden(case)
    session = Session(make_engine(reference.checkpoint, "portable", name))
    d = distance(session.append(reference.ids, logits="all"), reference.logits)
    assert d.max_error < {"float16": 0.008, "int8": 0.1}[name], d
    assert d.kl < {"float16": 2e-5, "int8": 0.008}[name], d


@pytest.mark.parametrize(
    ("case", "name"),
    [*((case, "int4") for case in ONE_A_FAMILY), ("llama_bias", "zero-points"), ("smollm3", "zero-points")],
)
def test_quantized_engines_compute_the_rounded_model(case: str, name: str, make_engine: MakeEngine) -> None:
    """The sharp test of the quantized graphs: against the float model over the rounded weights.

    The portable graph computes it in float32; the onnxruntime dialect rounds activations to 8 bits besides.
    """
    recipe = load_recipe("int4") if name == "int4" else ZERO_POINTS
    reference = golden(case)
    rounded = rounded_by(recipe, reference.checkpoint)
    wanted = Session(make_engine(rounded)).append(reference.ids, logits="all")
    portable = Session(make_engine(reference.checkpoint, "portable", recipe))
    assert relative_error(portable.append(reference.ids, logits="all"), wanted) < TOLERANCE
    session = Session(make_engine(reference.checkpoint, "onnxruntime", recipe))
    fast = np.concatenate([session.append(reference.ids[:33], logits="all"), session.append(reference.ids[33:], "all")])
    d = distance(fast, wanted)
    assert d.max_error < 0.2, d
    assert d.kl < 0.02, d


@pytest.mark.parametrize("case", WITHOUT_ROPE_VARIANTS)
def test_int4_weights(case: str, make_engine: MakeEngine) -> None:
    """On models of 40 channels int4 is far from the original but no noise: KL up to 0.44."""
    reference = golden(case)
    session = Session(make_engine(reference.checkpoint, "onnxruntime", "int4"))
    d = distance(session.append(reference.ids, logits="all"), reference.logits)
    assert d.kl < 0.8, d
    assert d.top1 > 0.35, d


ZERO_POINTS = Recipe("zero-points", IntFormat(4, 64, True), IntFormat(8, 32, True), IntFormat(4, 32, True))


def rounded_by(recipe: Recipe, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint untied, with every matrix rounded as the recipe says."""
    prefixes = ("model.language_model.", "language_model.model.")
    names = {
        next((f"model.{name.removeprefix(p)}" for p in prefixes if name.startswith(p)), name): tensor
        for name, tensor in arrays(checkpoint).items()
    }
    table = "model.embed_tokens.weight"
    names.setdefault("lm_head.weight", names[table])
    tensors = {}
    for name, values in names.items():
        fmt = {table: recipe.embedding, "lm_head.weight": recipe.lm_head}.get(name, recipe.body)
        if values.ndim == 2 and "vision" not in name and "multi_modal" not in name:
            assert isinstance(fmt, IntFormat)
            values = rounded_values(values, fmt)
        tensors[name] = ArrayTensor(name, values)
    config = {**checkpoint.config, "tie_word_embeddings": False}
    if "text_config" in config:
        config["text_config"] = {**config["text_config"], "tie_word_embeddings": False}
    return dataclasses.replace(checkpoint, config=config, tensors=tensors)


def rounded_values(values: np.ndarray, fmt: IntFormat) -> np.ndarray:
    codes, scales, zeros = quantize(values, fmt)
    packed = None if zeros is None else pack(zeros, fmt.bits)
    return dequantize(pack(codes, fmt.bits), scales, packed, fmt, values.shape[1])


@pytest.mark.parametrize("positions", [[0], [63], [5, 5, 2], list(range(64)), []])
def test_the_head_runs_on_the_positions_asked_for(positions: Sequence[int], make_engine: MakeEngine) -> None:
    """Positions in any order and repeated; none gives no row. Straight on the engine, below the session."""
    reference = golden("qwen3")
    for dialect in DIALECTS:
        engine = make_engine(reference.checkpoint, dialect)
        feeds = {"input_ids": reference.ids[None], "past_lengths": np.zeros(1, np.int64)}
        feeds["logit_positions"] = np.asarray(positions, dtype=np.int64)
        for layer in engine.contract.kv:
            shape = (1, layer.kv_heads, 64, layer.head_dim)
            feeds |= {layer.past_key: np.zeros(shape, np.float32), layer.past_value: np.zeros(shape, np.float32)}
        (logits,) = engine.session.run(["logits"], feeds)
        assert logits.shape == (1, len(positions), 97)
        if positions:
            assert relative_error(logits[0], reference.logits[positions]) < TOLERANCE


def test_cache_of_sliding_layers_keeps_working_past_the_window(make_engine: MakeEngine) -> None:
    """Rows beyond a window's reach must not matter: garbage there gives the same logits."""
    reference = golden("mistral_window")
    for dialect in DIALECTS:
        session = Session(make_engine(reference.checkpoint, dialect))
        session.append(reference.ids[:40], logits="none")
        cache = [array.copy() for array in session.cache()]
        for array in cache:
            array[:, :, :32] = 1e3  # the window is 8 keys, the next query's own included
        session.restore(cache, reference.ids[:40])
        assert relative_error(session.append(reference.ids[40:41]), reference.logits[40:41]) < TOLERANCE


def test_default_context_is_bounded_and_noted() -> None:
    checkpoint = changed(golden("llama").checkpoint, max_position_embeddings=40000)
    stage = build_llm(checkpoint)
    assert stage.contract.bounds["capacity"] == (1, 8192)
    assert any("8192" in note and "40000" in note for note in stage.notes)
    assert build_llm(checkpoint, max_context=40000).contract.bounds["seq"] == (1, 40000)
