"""What is written for a model and a chip, and what is read of a checkpoint's config."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgewright.errors import GenieError, UsageError
from edgewright.genie.checks import notes, problems
from edgewright.genie.document import parse
from edgewright.genie.printed import printed_queries
from edgewright.genie.rope import Rope, rope_of
from edgewright.genie.soc import SOCS, Soc, extensions_of, soc_of
from edgewright.genie.writing import Model, Running, Table, dialog_config, sampler_block

LLAMA3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def model(**more: Any) -> Model:
    return Model(
        **{"context": 512, "vocab": 97, "bos": 95, "eos": (96,), "head_dim": 64, "rope": Rope(1e4, 32), **more}
    )


@pytest.mark.parametrize(
    "found",
    [
        model(),
        model(eos=(1, 2), table=Table(64)),
        model(table=Table(64, "float32"), rope=Rope(5e5, 32, {"rope-type": "linear", "factor": 2.0})),
        model(table=Table(64, "int8", 0.5, 3), sampling={"do_sample": True, "repetition_penalty": 1.5}),
    ],
)
def test_every_dialog_is_one_that_the_library_takes(found: Model) -> None:
    text = json.dumps(dialog_config(found, Running(["a.bin"])))
    assert problems(parse(text), "dialog") == []
    assert notes(parse(text), "dialog") == []


def test_blocks_of_tables() -> None:
    assert Table(4).block() == {"version": 1, "size": 4, "type": "callback"}
    assert Table(4, "float32").block()["datatype"] == "float32"
    assert "quant-param" not in Table(4, "float32").block()
    assert Table(4, "int16", 0.25, -7).block() == {
        "version": 1, "size": 4, "type": "lut", "lut-path": "embedding_weights.raw", "datatype": "sfixed16",
        "quant-param": {"scale": 0.25, "offset": -7},
    }  # fmt: skip


def test_samplers() -> None:
    assert sampler_block(model(), 3) == {"version": 1, "seed": 3, "temp": 0.0}
    # What a generation config leaves out is written: the library would take 0.1, 0 and 0.8.
    usual = {"version": 1, "seed": 3, "temp": 1.0, "top-k": 50, "top-p": 1.0}
    assert sampler_block(model(sampling={"do_sample": True}), 3) == usual
    drawn = {"do_sample": True, "temperature": 0.6, "top_k": 0, "top_p": None}
    assert sampler_block(model(sampling=drawn), 3) == {**usual, "temp": 0.6, "top-k": 0}
    cold = {"do_sample": True, "temperature": 0, "top_k": 20}
    assert sampler_block(model(sampling=cold), 3) == {"version": 1, "seed": 3, "temp": 0.0}
    greedy = {"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.0}
    assert sampler_block(model(sampling=greedy), 3) == {"version": 1, "seed": 3, "temp": 0.0}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"rope_theta": 10000.0}, Rope(1e4, 64)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, Rope(5e5, 64)),
        ({"text_config": {"rope_theta": 1e6}, "rope_theta": 1}, Rope(1e6, 64)),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.5}, Rope(1e4, 32)),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}},
            Rope(1e4, 64, {"rope-type": "linear", "factor": 4.0}),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
            Rope(5e5, 64, {
                "rope-type": "llama3", "factor": 32.0, "low-freq-factor": 1.0, "high-freq-factor": 4.0,
                "original-max-position-embeddings": 8192}),
        ),
        (
            {"rope_theta": 1e4, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
             "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}},
            Rope(1e4, 64, {
                "rope-type": "longrope", "factor": 32.0, "short-factor": [1.0], "long-factor": [2.0],
                "original-max-position-embeddings": 4096}),
        ),
    ],
)  # fmt: skip
def test_rotations_of_checkpoints(config: dict[str, Any], wanted: Rope) -> None:
    assert rope_of(config, 128) == wanted


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "no rope_theta"),
        ({"rope_theta": "big"}, "no rope_theta"),
        ({"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn', which Genie has not"),
        ({"rope_theta": 1e4, "rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "lacks low_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "several ways"),
        ({"rope_theta": 1e6, "rope_local_base_freq": 1e4}, "several ways"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.01}, "no whole pairs"),
        ({"rope_theta": 1e4, "partial_rotary_factor": "half"}, "no whole pairs"),
    ],
)
def test_rotations_that_genie_has_not(config: dict[str, Any], said: str) -> None:
    with pytest.raises(GenieError, match=said):
        rope_of(config, 128)


def test_chips() -> None:
    assert len({soc.name for soc in SOCS}) == len(SOCS)
    assert soc_of("8 Gen 2") == Soc("8-gen-2", 43, "v73")
    assert soc_of("SM8650") == Soc("8-gen-3", 57, "v75")
    assert soc_of("snapdragon_8_elite") == Soc("8-elite", 69, "v79")
    assert soc_of("x-elite").mmap is False
    assert soc_of("x-elite", dsp_arch="v75") == Soc("x-elite", 60, "v75", mmap=False)
    assert soc_of("Mine", soc_model=5, dsp_arch="v99") == Soc("mine", 5, "v99")
    with pytest.raises(UsageError, match=r"'sa8775x' is not known here \(did you mean 'sa8775'\?\)"):
        soc_of("sa8775x")
    with pytest.raises(UsageError, match="not known"):
        soc_of("mine", soc_model=5)
    with pytest.raises(UsageError, match="'73' is none"):
        soc_of("sa8255", dsp_arch="73")


def test_extensions_of_a_chip() -> None:
    for soc in SOCS:
        data = extensions_of(soc, device_id=0)
        assert problems(parse(json.dumps(data)), "extensions") == []
        assert data["devices"][0]["device_id"] == 0
    assert "device_id" not in extensions_of(SOCS[0])["devices"][0]


def test_lines_of_an_early_program() -> None:
    text = (
        "[KPI] Prompt processing: 2281999 us\n[END]\nToken generation: 353360439 us, 0.464115 tokens/s\n"
        "Token generation: 1000000 us, 8 tokens/s\nToken generation: none\n"
    )
    first, second = printed_queries(text)
    assert first.kpis["time-to-first-token"] == (2281999, "us")
    assert first.kpis["num-generated-tokens"] == (164, "")
    assert first.kpis["token-generation-rate"] == (0.464115, "toks/sec")
    assert first.duration_us == 2281999 + 353360439
    assert second.kpis["time-to-first-token"] == (0, "us")
    assert printed_queries("nothing") == ()
    digits = "9" * 5000
    for line in (f"Prompt processing: {digits} us", f"Token generation: {digits} us, 1 tokens/s"):
        assert printed_queries(line) == ()
    assert printed_queries(f"Token generation: 1 us, {digits} tokens/s") == ()
