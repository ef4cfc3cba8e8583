"""Our own layout trusts no folder: whatever was changed since it was written is one sentence."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_cases import Arrays, assert_one_sentence, tensors

from edgewright.checkpoint.layouts.native import METHOD, VERSION, read
from edgewright.errors import CheckpointError
from edgewright.formats import IntFormat, MxFormat, ScaledFormat

ROWS, WIDTH = 6, 40
INT8 = ScaledFormat("int8", "channel")
STATIC = {"name": "int8", "static": True, "scope": "tensor", "symmetric": False}
Change = Callable[[dict[str, Any], Arrays], None]


def folder() -> tuple[dict[str, Any], Arrays]:
    """A module whose inputs go through all there is, a plain one, and a cache a head."""
    rng = np.random.default_rng(0)
    shape = [ROWS, WIDTH]
    config = {
        "version": VERSION,
        "quant_method": METHOD,
        "modules": {
            "a.q": {"format": INT8.to_json(), "shape": shape, "activation": dict(STATIC)},
            "a.o": {"format": MxFormat("e2m1").to_json(), "shape": shape},
        },
        "kv_dtype": "int8",
        "kv_modules": ["a"],
        "recipe": {"name": "mine"},
        "biases": ["a.q"],
        "untied": False,
    }
    arrays = {
        "a.q.weight.codes": rng.integers(-127, 128, (ROWS, WIDTH)).astype(np.int8),
        "a.q.weight.scales": rng.random((ROWS, 1)).astype(np.float32),
        "a.q.input.permutation": rng.permutation(WIDTH),
        "a.q.input.multiply": rng.random(WIDTH).astype(np.float32),
        "a.q.input.scale": np.array([0.5], np.float32),
        "a.q.input.zero_point": np.array([-3], np.int8),
        "a.q.bias": rng.random(ROWS).astype(np.float32),
        "a.o.weight.codes": rng.integers(0, 256, (ROWS, 32)).astype(np.uint8),
        "a.o.weight.scales": np.full((ROWS, 2), 120, np.uint8).view(ml_dtypes.float8_e8m0fnu),
        "a.key_scale": np.array([0.5, 0.25], np.float32),
        "a.value_scale": np.array([0.5, 0.75], np.float32),
        "norm.weight": np.ones(WIDTH, np.float32),
    }
    return config, arrays


def test_what_was_written_comes_back() -> None:
    config, arrays = folder()
    found, quantization = read(config, tensors(arrays))
    assert set(found) == {"a.q.weight", "a.o.weight", "a.q.bias", "norm.weight"}
    given_input = found["a.q.weight"].input
    assert given_input is not None
    assert given_input.activation is not None
    assert given_input.activation.to_json() == STATIC
    for kind in ("permutation", "multiply", "scale", "zero_point"):
        assert np.array_equal(getattr(given_input, kind), arrays[f"a.q.input.{kind}"])
    assert found["a.o.weight"].input is None
    wanted = arrays["a.q.weight.codes"] * arrays["a.q.weight.scales"]
    assert np.array_equal(found["a.q.weight"].rows(0, ROWS), wanted)
    assert quantization.kv_dtype == "int8"
    assert [scale.tolist() for scale in quantization.kv_scales["a"]] == [[0.5, 0.25], [0.5, 0.75]]
    assert (quantization.method, quantization.biases, quantization.untied) == (f"{METHOD} mine", ("a.q",), False)


def entry(**values: Any) -> Change:
    return lambda config, _: config["modules"]["a.q"].update(values)


def top(**values: Any) -> Change:
    return lambda config, _: config.update(values)


def put(name: str, values: Any, dtype: Any = np.float32) -> Change:
    return lambda _, arrays: arrays.update({name: np.asarray(values, dtype)})


def without(name: str) -> Change:
    return lambda _, arrays: arrays.pop(name) and None


PERMUTATION = np.arange(WIDTH)
CHANGES: dict[str, tuple[Change, str]] = {
    "permutation out of range": (put("a.q.input.permutation", PERMUTATION + 1, np.int64), "no permutation of 40"),
    "permutation negative": (put("a.q.input.permutation", PERMUTATION - 40, np.int64), "no permutation"),
    "permutation twice": (put("a.q.input.permutation", PERMUTATION // 2, np.int64), "no permutation"),
    "permutation of floats": (put("a.q.input.permutation", PERMUTATION), "is float32 [40] and not int64 [40]"),
    "permutation short": (put("a.q.input.permutation", PERMUTATION[:-1], np.int64), "is int64 [39] and not"),
    "multiply of width 1": (put("a.q.input.multiply", [2.0]), "is float32 [1] and not float32 [40]"),
    "multiply NaN": (put("a.q.input.multiply", np.full(WIDTH, np.nan)), "a.q.input.multiply holds values that are not"),
    "multiply float16": (put("a.q.input.multiply", np.ones(WIDTH), np.float16), "is float16 [40] and not float32"),
    "scale NaN": (put("a.q.input.scale", [np.nan]), "a.q.input.scale holds values that are not finite"),
    "scale zero": (put("a.q.input.scale", [0.0]), "holds a scale that is not positive"),
    "scale of two": (put("a.q.input.scale", [1.0, 2.0]), "is float32 [2] and not float32 [1]"),
    "scale a scalar": (put("a.q.input.scale", 1.0), "is float32 [] and not float32 [1]"),
    "scale missing": (
        without("a.q.input.scale"),
        "a.q has no scale of its inputs, and its activations are int8 static",
    ),
    "zero point missing": (without("a.q.input.zero_point"), "a.q has no zero_point of its inputs"),
    "zero point uint8": (put("a.q.input.zero_point", [3], np.uint8), "is uint8 [1] and not int8 [1]"),
    "zero point unasked": (entry(activation={**STATIC, "symmetric": True}), "a.q has a zero_point of its inputs"),
    "scale unasked": (entry(activation=None), "a.q has a scale of its inputs, and its activations are none"),
    "activation unknown": (entry(activation={**STATIC, "name": "int3"}), "The activations of a.q are none that"),
    "activation scope": (entry(activation={**STATIC, "scope": "token"}), "The activations of a.q are none that"),
    "activation key": (entry(activation={**STATIC, "more": 1}), "The activations of a.q are none that"),
    "activation number": (entry(activation={**STATIC, "static": 1}), "The activations of a.q are none that"),
    "activation text": (entry(activation="int8"), "The activations of a.q are none that"),
    "activation list": (entry(activation={**STATIC, "name": ["int8"]}), "can't be read"),
    "shape of parts": (
        entry(shape=[ROWS, WIDTH + 1]),
        "a.q.weight.codes has the shape [6, 40] where int8 channel needs",
    ),
    "shape a fraction": (entry(shape=[ROWS, 40.7]), "The shape of a.q is not two positive whole numbers"),
    "shape of three": (entry(shape=[ROWS, WIDTH, 1]), "The shape of a.q is not two"),
    "shape zero": (entry(shape=[0, WIDTH]), "The shape of a.q is not two"),
    "shape true": (entry(shape=[True, WIDTH]), "The shape of a.q is not two"),
    "format a float": (entry(format={"dtype": "float16"}), "a.q is listed among the quantized modules with the format"),
    "format unknown": (entry(format={"element": "int7"}), "can't be read"),
    "format a text": (entry(format="int8"), "can't be read"),
    "modules a list": (top(modules=[1]), "can't be read"),
    "modules of text": (top(modules={"a.q": "int8"}), "can't be read"),
    "recipe missing": (top(recipe=None), "can't be read"),
    "biases a text": (top(biases="a.q"), "quantization_config.biases is no list of names"),
    "biases twice": (top(biases=["a.q", "a.q"]), "quantization_config.biases is no list of names"),
    "cache unknown": (top(kv_dtype="int4"), "The cache's dtype is unknown"),
    "cache without dtype": (top(kv_dtype=None), "The cache has a dtype without scales, or scales without a dtype"),
    "cache without scales": (top(kv_modules=[]), "The cache has a dtype without scales, or scales without a dtype"),
    "cache modules a text": (top(kv_modules="a"), "quantization_config.kv_modules is no list of names"),
    "cache not named": (top(kv_dtype=None, kv_modules=[]), "The tensor a.key_scale belongs to nothing that"),
    "key scale zero": (put("a.key_scale", [0.0, 1.0]), "a.key_scale holds a scale that is not positive"),
    "value scale infinite": (put("a.value_scale", [np.inf, 1.0]), "a.value_scale holds values that are not finite"),
    "value scales fewer": (put("a.value_scale", [1.0]), "Keys and values of a have different numbers of scales"),
    "value scales of two axes": (put("a.value_scale", [[1.0, 1.0]]), "is float32 [1, 2] and not"),
    "module not named": (
        lambda config, _: config["modules"].pop("a.o") and None,
        "a.o.weight.codes belongs to nothing",
    ),
    "floats a list": (top(floats=[]), "can't be read"),
    "float dtype": (top(floats={"norm": {"dtype": "float8"}}), "The float dtype of norm is none of float32, float16"),
    "float vector": (
        top(floats={"norm": {"dtype": "float32"}}),
        "norm.weight is listed among the float modules and is",
    ),
    "float missing": (top(floats={"gone": {"dtype": "float32"}}), "has no tensor gone.weight, which its config calls"),
    "version": (top(version=VERSION + 1), "another version of this program"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_folder_is_one_sentence(change: str) -> None:
    config, arrays = folder()
    apply, message = CHANGES[change]
    apply(config, arrays)
    with pytest.raises(CheckpointError) as error:
        read(config, tensors(arrays))
    assert_one_sentence(error.value, message)


def test_int_formats_may_have_offsets_and_others_not() -> None:
    config, arrays = folder()
    fmt = IntFormat(8, 32, False)
    config["modules"]["b"] = {"format": fmt.to_json(), "shape": [3, 32], "offsets": True}
    arrays["b.weight.codes"] = np.full(fmt.codes_shape(3, 32), 128, np.uint8)
    arrays["b.weight.scales"] = np.ones((3, 1), np.float32)
    arrays["b.weight.offsets"] = np.full((3, 1), 0.5, np.float32)
    found, _ = read(config, tensors(arrays))
    assert found["b.weight"].encoded(0, 3)["offsets"].tolist() == [[0.5]] * 3


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([]), st.just({}), st.just([[]])
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(["top", "module", "format", "activation"]), st.integers(0, 20), JUNK)
def test_junk_in_the_config_never_ends_in_a_traceback(place: str, index: int, junk: Any) -> None:
    config, arrays = folder()
    config = copy.deepcopy(config)
    module = config["modules"]["a.q"]
    target = {"top": config, "module": module, "format": module["format"], "activation": module["activation"]}[place]
    target[sorted(target)[index % len(target)]] = junk
    with contextlib.suppress(CheckpointError):
        read(config, tensors(arrays))
