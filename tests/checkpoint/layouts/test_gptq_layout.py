"""GPTQ checkpoints: goldens bit for bit, packing against slow packing, zero points, orders, hostile files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_cases import (
    GOLDENS,
    Arrays,
    along,
    as_trained,
    assert_one_sentence,
    cases,
    check_logits,
    check_taken_over,
    check_weights,
    down,
    tensors,
)

from conftest import MakeEngine
from edgewright.build.pipeline import deploy
from edgewright.checkpoint import open_checkpoint
from edgewright.checkpoint.layouts.gptq import read
from edgewright.errors import CheckpointError, UnsupportedFormatError
from edgewright.formats import IntFormat

CASES = cases("gptq-")
MODULE = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize("case", CASES)
def test_weights_are_the_tools_bit_for_bit(case: str) -> None:
    check_weights(case)


@pytest.mark.parametrize("case", CASES)
def test_float_graph_computes_the_reference_logits(case: str, make_engine: MakeEngine) -> None:
    check_logits(case, make_engine)


@pytest.mark.parametrize("case", CASES)
def test_codes_are_taken_over(case: str) -> None:
    check_taken_over(case)


@pytest.mark.parametrize("case", ["gptq-v1-asym-borrow", "gptq-v2-desc-act-asym", "gptq-v1-8bit-channel"])
def test_deploys_and_verifies(case: str, tmp_path: Path) -> None:
    built = deploy(GOLDENS / case, tmp_path / "out", recipe="stored")
    assert built.manifest.verdict["status"] == "passed"
    assert built.manifest.recipe["summary"]["bit_exact"] == built.manifest.recipe["summary"]["modules"]
    assert any(note.startswith("quantized checkpoint: gptq v") for note in built.manifest.notes)


def config(bits: int = 4, group: int = 32, **keys: Any) -> dict[str, Any]:
    usual = {"sym": False, "desc_act": False, "checkpoint_format": "gptq_v2"}
    return {"quant_method": "gptq", "bits": bits, "group_size": group, **usual, **keys}


def linear(
    seed: int, bits: int = 4, group: int = 32, width: int = 96, rows: int = 64, *, shuffled: bool = False
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The arrays of one module (version 2) and its float32 weight `[rows, width]`."""
    rng = np.random.default_rng(seed)
    size = width if group == -1 else group
    groups = -(-width // size)
    index = np.arange(width) // size
    if shuffled:
        index = rng.permutation(index)
    codes = rng.integers(0, 1 << bits, (width, rows))
    zeros = rng.integers(0, 1 << bits, (groups, rows))
    zeros[:, 0], zeros[:, 1] = 0, (1 << bits) - 1
    scales = rng.uniform(-0.1, 0.1, (groups, rows)).astype(np.float16)
    arrays = {
        "qweight": down(codes, bits),
        "qzeros": along(zeros, bits),
        "scales": scales,
        "g_idx": index.astype(np.int32),
    }
    weight = (codes - zeros[index]).astype(np.float32) * scales[index].astype(np.float32)
    return {f"{MODULE}.{name}": array for name, array in arrays.items()}, np.ascontiguousarray(weight.T)


@given(
    seed=st.integers(0, 1 << 20),
    bits=st.sampled_from([2, 3, 4, 8]),
    layout=st.sampled_from([(32, 96), (32, 64), (64, 128), (128, 256), (128, 160), (16, 64), (1024, 96), (-1, 224)]),
    rows=st.sampled_from([32, 64, 96]),
    shuffled=st.booleans(),
)
def test_packing_is_undone(seed: int, bits: int, layout: tuple[int, int], rows: int, shuffled: bool) -> None:
    group, width = layout
    arrays, wanted = linear(seed, bits, group, width, rows, shuffled=shuffled)
    found, quantization = read(config(bits, group, desc_act=shuffled), tensors(arrays))
    tensor = found.pop(f"{MODULE}.weight")
    assert not found
    assert not quantization.untied
    assert tensor.shape == wanted.shape
    assert isinstance(tensor.encoding, IntFormat)
    assert (tensor.encoding.bits, tensor.encoding.zero_point) == (8 if bits == 8 else 4, True)
    assert tensor.encoding.scales == "float16"
    np.testing.assert_array_equal(as_trained(tensor), wanted)
    # The codes of any run of rows are those of the whole.
    whole, part = tensor.encoded(0, rows), tensor.encoded(5, 22)
    for kind in whole:
        np.testing.assert_array_equal(part[kind], whole[kind][5:22])


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_version_1_borrows_over_whole_words(bits: int) -> None:
    arrays, wanted = linear(3, bits)
    words = arrays[f"{MODULE}.qzeros"].view(np.uint32)
    one = np.uint32(sum(1 << (bits * i) for i in range(32 // bits)))
    arrays[f"{MODULE}.qzeros"] = (words - one).view(np.int32)
    assert (words - one < words).any()
    assert (words - one > words).any()  # borrowed beyond the word
    trusted = {"quantizer": ["gptqmodel:7.7.0"]}
    found, _ = read(config(bits, checkpoint_format="gptq", meta=trusted), tensors(arrays))
    np.testing.assert_array_equal(as_trained(found[f"{MODULE}.weight"]), wanted)


def test_a_zero_point_that_overwrote_others_is_refused() -> None:
    """Shifting -1 into a word fills all fields above."""
    arrays, _ = linear(4)
    words = arrays[f"{MODULE}.qzeros"].view(np.uint32)
    words[1, 2] = 0xFFFFF765  # fields 5, 6, 7, 15, ...
    with pytest.raises(UnsupportedFormatError) as caught:
        read(config(checkpoint_format="gptq"), tensors(arrays))
    assert_one_sentence(caught.value, f"{MODULE}.qzeros", "gptq_v2")
    read(config(), tensors(arrays))  # in version 2 it says what it says


def test_symmetric_weights_need_no_zero_points_and_are_checked() -> None:
    arrays, _ = linear(5)
    arrays[f"{MODULE}.qzeros"][:] = np.int32(-2004318072)  # 0x88888888
    found, _ = read(config(sym=True), tensors(arrays))
    tensor = found[f"{MODULE}.weight"]
    assert tensor.encoding == IntFormat(4, 32, False, scales="float16")
    assert "zero_points" not in tensor.encoded(0, 3)
    arrays[f"{MODULE}.qzeros"][1, 3] ^= 1 << 4
    found, _ = read(config(sym=True), tensors(arrays))
    found[f"{MODULE}.weight"].rows(0, 24)
    with pytest.raises(CheckpointError) as caught:
        found[f"{MODULE}.weight"].rows(24, 32)
    assert_one_sentence(caught.value, f"{MODULE}.qzeros", "symmetric")


@pytest.mark.parametrize("word", [0x77777777, 0x88888888])
def test_auto_round_may_or_may_not_have_subtracted(word: int) -> None:
    arrays, _ = linear(6)
    arrays[f"{MODULE}.qzeros"][:] = np.uint32(word).view(np.int32)
    del arrays[f"{MODULE}.g_idx"]
    asked = config(sym=True, packing_format="auto_round:auto_gptq") | {"quant_method": "auto-round"}
    found, quantization = read(asked, tensors(arrays))
    assert quantization.method.startswith("auto-round (")
    found[f"{MODULE}.weight"].read()


def test_other_scales_are_widened() -> None:
    arrays, wanted = linear(7)
    arrays[f"{MODULE}.scales"] = arrays[f"{MODULE}.scales"].astype(np.float32)
    found, _ = read(config(), tensors(arrays))
    encoding = found[f"{MODULE}.weight"].encoding
    assert isinstance(encoding, IntFormat)
    assert encoding.scales == "float32"
    np.testing.assert_array_equal(as_trained(found[f"{MODULE}.weight"]), wanted)


def test_an_index_of_zeros_means_the_usual_order() -> None:
    arrays, wanted = linear(8)
    arrays[f"{MODULE}.g_idx"][:] = 0
    found, _ = read(config(), tensors(arrays))
    assert found[f"{MODULE}.weight"].input is None
    np.testing.assert_array_equal(as_trained(found[f"{MODULE}.weight"]), wanted)


def test_equal_orders_are_one_input() -> None:
    arrays, _ = linear(9, shuffled=True)
    more = {name.replace("up_proj", "gate_proj"): array for name, array in arrays.items()}
    found, _ = read(config(desc_act=True), tensors({**arrays, **more}))
    assert found[f"{MODULE}.weight"].input is found["model.layers.0.mlp.gate_proj.weight"].input is not None


def test_settings_by_pattern() -> None:
    arrays, wanted = linear(10, 8, 64, 128)
    other, plain = linear(11)
    other = {name.replace("up_proj", "gate_proj"): array for name, array in other.items()}
    dynamic = {"-:.*down_proj": {}, r"+:.*\.up_proj": {"bits": 8, "group_size": 64}}
    found, quantization = read(config(dynamic=dynamic), tensors({**arrays, **other}))
    np.testing.assert_array_equal(as_trained(found[f"{MODULE}.weight"]), wanted)
    np.testing.assert_array_equal(as_trained(found["model.layers.0.mlp.gate_proj.weight"]), plain)
    assert "8 bits group 64 zero points" in quantization.method
    with pytest.raises(CheckpointError, match=r"leaves model\.layers\.0\.mlp\.up_proj out"):
        read(config(dynamic={r"-:.*up_proj": {}}), tensors(arrays))


Change = dict[str, Any]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"bits": 5}, "5 bits"),
        ({"bits": 8}, "scales"),
        ({"bits": "4"}, "whole number"),
        ({"group": 0}, "groups of 0"),
        ({"group": 64}, "shape"),
        ({"group": 24}, "shape"),
        ({"checkpoint_format": "marlin"}, "marlin"),
        ({"pack_dtype": "int16"}, "pack_dtype"),
        ({"sym": "yes"}, "sym"),
        ({"dynamic": {"x": 3}}, "dynamic"),
        ({"dynamic": {"+:(a*)*b": {}}}, "forever"),
        ({"modules_in_block_to_quantize": 3}, "modules_in_block_to_quantize"),
        ({"modules_in_block_to_quantize": [["self_attn.q_proj"]]}, "leaves model.layers.0.mlp.up_proj out"),
        ({"rotation": "hadamard"}, "rotation"),
    ],
)
def test_configs_that_do_not_fit_are_refused(keys: Change, words: str) -> None:
    arrays, _ = linear(12)
    with pytest.raises((CheckpointError, UnsupportedFormatError)) as caught:
        read(config(**keys), tensors(arrays))
    assert_one_sentence(caught.value, words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qzeros": None}, "no tensor"),
        ({"scales": None}, "no tensor"),
        ({"g_idx": None}, "no tensor"),
        ({"qweight": None}, "no qweight"),
        ({"qweight": np.zeros((12, 64, 1), np.int32)}, "matrix"),
        ({"qweight": np.zeros((12, 64), np.int64)}, "int64"),
        ({"qweight": np.zeros((0, 64), np.int32)}, "matrix"),
        ({"qzeros": np.zeros((3, 7), np.int32)}, "qzeros"),
        ({"scales": np.zeros((4, 64), np.float16)}, "scales"),
        ({"scales": np.zeros((3, 64), np.int32)}, "scales"),
        ({"g_idx": np.zeros(95, np.int32)}, "g_idx"),
        ({"g_idx": np.arange(96, dtype=np.int32)[::-1] // 32}, "activation order"),
        ({"weight": np.zeros((64, 96), np.float16)}, "plain"),
        ({"codebook": np.zeros(4, np.int32)}, None),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changes: dict[str, np.ndarray | None], words: str | None) -> None:
    arrays, _ = linear(13)
    for name, array in changes.items():
        arrays.pop(f"{MODULE}.{name}", None)
        if array is not None:
            arrays[f"{MODULE}.{name}"] = np.ascontiguousarray(array)
    if words is None:  # passed on: the family refuses it by name
        assert f"{MODULE}.codebook" in read(config(), tensors(arrays))[0]
        return
    with pytest.raises(CheckpointError) as caught:
        read(config(), tensors(arrays))
    assert_one_sentence(caught.value, words)


@pytest.mark.parametrize("bad", [-1, 3, 1])
def test_groups_of_other_sizes_are_refused(bad: int) -> None:
    arrays, _ = linear(14, shuffled=True)
    index = arrays[f"{MODULE}.g_idx"]
    index[int(np.argmin(index))] = bad
    with pytest.raises(CheckpointError) as caught:
        read(config(desc_act=True), tensors(arrays))
    assert_one_sentence(caught.value, f"{MODULE}.g_idx", "groups")


def test_orphans_are_refused() -> None:
    arrays, _ = linear(15)
    extra: Arrays = {**arrays, "model.layers.1.mlp.up_proj.qzeros": np.zeros((3, 8), np.int32)}
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.qzeros"):
        read(config(), tensors(extra))


def test_a_head_needs_leave() -> None:
    arrays, _ = linear(16)
    head = {name.replace(MODULE, "lm_head"): array for name, array in arrays.items()}
    with pytest.raises(CheckpointError, match="leaves lm_head out"):
        read(config(), tensors(head))
    table = {"model.embed_tokens.weight": np.zeros((64, 96), np.float16)}
    _, quantization = read(config(lm_head=True), tensors({**head, **table}))
    assert quantization.untied


@pytest.mark.parametrize(
    ("case", "name", "keys"),
    [
        ("gptq-v1-asym", "quantize_config.json", {}),
        ("awq-g32", "quant_config.json", {"bits": "w_bit", "group_size": "q_group_size"}),
    ],
)
def test_files_of_older_tools_stand_for_the_config(case: str, name: str, keys: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / case, tmp_path, dirs_exist_ok=True)
    asked = json.loads((tmp_path / "config.json").read_text())
    entry = asked.pop("quantization_config")
    del entry["quant_method"]
    (tmp_path / "config.json").write_text(json.dumps(asked))
    (tmp_path / name).write_text(json.dumps({keys.get(key, key): value for key, value in entry.items()}))
    found, wanted = open_checkpoint(tmp_path), open_checkpoint(GOLDENS / case)
    assert found.quantization == wanted.quantization
    for module in ("self_attn.k_proj", "mlp.down_proj"):
        tensor = f"model.layers.0.{module}.weight"
        np.testing.assert_array_equal(found.tensors[tensor].read(), wanted.tensors[tensor].read())


@pytest.mark.parametrize("method", ["bitsandbytes", None, 3, ["gptq"], {}])
def test_other_methods_are_refused_by_name(method: object, tmp_path: Path) -> None:
    shutil.copytree(GOLDENS / "gptq-v1-sym", tmp_path, dirs_exist_ok=True)
    asked = json.loads((tmp_path / "config.json").read_text())
    asked["quantization_config"]["quant_method"] = method
    (tmp_path / "config.json").write_text(json.dumps(asked))
    with pytest.raises(UnsupportedFormatError) as caught:
        open_checkpoint(tmp_path)
    assert_one_sentence(caught.value, repr(method), "gptq")
