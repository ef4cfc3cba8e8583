"""Configurations: what is said of wrong ones, and what right ones hold."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from edgewright.errors import GenieError
from edgewright.genie.blocks import CONTEXT
from edgewright.genie.checks import notes, problems
from edgewright.genie.config import (
    Config,
    Embedding,
    Sampler,
    config_of,
    dialog_of,
    read_config,
    read_dialog,
    read_encoder,
    read_engine,
    read_generator,
    read_sampler,
    write_config,
)
from edgewright.genie.document import parse

HTP = {
    "version": 1, "use-mmap": True, "spill-fill-bufsize": 0, "mmap-budget": 0, "poll": True, "cpu-mask": "0xe0",
    "kv-dim": 128, "pos-id-dim": 64, "rope-theta": 10000,
}  # fmt: skip
ENGINE = {
    "version": 1, "n-threads": 3,
    "backend": {"version": 1, "type": "QnnHtp", "QnnHtp": HTP, "extensions": "htp.json"},
    "model": {"version": 1, "type": "binary", "binary": {"version": 1, "ctx-bins": ["a.bin", "b.bin"]}},
}  # fmt: skip
DIALOG = {
    "dialog": {
        "version": 1, "type": "basic", "tokenizer": {"version": 1, "path": "tokenizer.json"}, "engine": ENGINE,
        "context": {"version": 1, "size": 4096, "n-vocab": 1000, "bos-token": 1, "eos-token": [2, 3]},
        "sampler": {"version": 1, "seed": 42, "temp": 0.8, "top-k": 40, "top-p": 0.95},
        "embedding": {
            "version": 1, "size": 64, "type": "lut", "lut-path": "lut.raw", "datatype": "ufixed16",
            "quant-param": {"scale": 0.001, "offset": -107.10983274409456},
        },
        "max-num-tokens": 0, "stop-sequence": ["x"],
    },
}  # fmt: skip


def changed(place: str, value: Any = ...) -> dict[str, Any]:
    """DIALOG with a value changed or, without one, taken out."""
    data = copy.deepcopy(DIALOG)
    *around, last = place.split("/")
    block: Any = data
    for part in around:
        block = block[part]
    if value is ...:
        del block[last]
    else:
        block[last] = value
    return data


def said(data: Any, kind: Any = "dialog") -> list[str]:
    return [str(problem) for problem in problems(parse(json.dumps(data)), kind)]


def test_a_dialog_s_values(tmp_path: Path) -> None:
    path = tmp_path / "dialog.json"
    write_config(path, "dialog", DIALOG)
    dialog = read_dialog(path)
    assert (dialog.type, dialog.top, dialog.data) == ("basic", "dialog", DIALOG)
    context = dialog.context
    assert (context.size, context.n_vocab, context.bos, context.eos, context.pad) == (4096, 1000, 1, (2, 3), 2)
    assert (context.eot, context.n_embd) == (None, None)
    assert dialog.tokenizer == "tokenizer.json"
    assert dialog.sampler == Sampler(seed=42, temp=0.8, top_k=40, top_p=0.95)
    assert not dialog.sampler.greedy
    assert (dialog.max_num_tokens, dialog.stop_sequence) == (0, ("x",))
    # The library keeps the offset as an integer.
    assert dialog.embedding == Embedding(64, "lut", "lut.raw", "uint16", 0.001, -107)
    (engine,) = dialog.engines
    assert (engine.backend, engine.files, engine.extensions) == ("QnnHtp", ("a.bin", "b.bin"), ("htp.json",))
    assert (engine.role, engine.n_threads) == (None, 3)


def test_defaults_and_other_forms() -> None:
    data = changed("dialog/embedding")
    del data["dialog"]["sampler"], data["dialog"]["max-num-tokens"], data["dialog"]["stop-sequence"]
    data["dialog"]["context"] |= {"eos-token": 2**64 - 1, "pad-token": -3, "eot-token": 7}
    two = [{**ENGINE, "role": "draft"}, {**ENGINE, "role": "target"}]
    data["dialog"] |= {"type": "spd", "engine": two, "spd": {"version": 1, "draft-len": 4}}
    two[0]["backend"] = {"version": 1, "type": "QnnGpu", "extensions": ["a", "b"]}
    two[1]["model"] = {"version": 1, "type": "library", "library": {"version": 1, "model-bin": "m"}}
    dialog = dialog_of(config_of(parse(json.dumps(data)), "dialog"), data["dialog"])
    assert (dialog.sampler, dialog.embedding, dialog.max_num_tokens) == (None, None, None)
    assert (dialog.context.eos, dialog.context.pad, dialog.context.eot) == ((-1,), -3, 7)
    assert [(one.role, one.backend, one.files) for one in dialog.engines] == [
        ("draft", "QnnGpu", ("a.bin", "b.bin")), ("target", "QnnHtp", ("m",)),
    ]  # fmt: skip
    assert dialog.engines[0].extensions == ("a", "b")
    assert Sampler(temp=0).greedy
    assert Sampler(top_k=1).greedy
    assert not Sampler(type="custom", temp=0).greedy


def test_the_message_names_file_line_place_and_the_nearest_key(tmp_path: Path) -> None:
    data = changed("dialog/engine/backend/QnnHtp/kv_dim", 128)
    path = tmp_path / "genie_config.json"
    path.write_text(json.dumps(data, indent=1))
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if "kv_dim" in text)
    with pytest.raises(GenieError) as error:
        read_dialog(path)
    assert str(error.value) == (
        f"{path}, line {line}: dialog.engine.backend.QnnHtp.kv_dim is a key that is not known there (did you mean "
        "'kv-dim'?): mend it or take it out."
    )


def test_several_problems_are_counted() -> None:
    data = changed("dialog/context/size", "big")
    data["dialog"]["type"] = "Basic"
    with pytest.raises(GenieError) as error:
        config_of(parse(json.dumps(data, indent=0), "d.json"), "dialog")
    assert str(error.value).endswith(
        "dialog.type is \"Basic\" (did you mean 'basic'?): give one of basic, ssd-q1, lade, spd, multistream, eaglet, "
        'kv-share. (1 more: dialog.context.size is "big": give an integer from 0)'
    )


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ([], "the top level is not an object: such a file holds 'dialog'"),
        ({}, "the top level has no 'dialog': give a file that has it"),
        ({**DIALOG, "dialogue": 1}, "dialogue is a key that is not known there (did you mean 'dialog'?)"),
        (changed("dialog/tokenizer"), "dialog lacks 'tokenizer': add it (an object)"),
        (changed("dialog/version", 2), "dialog.version is 2: give 1"),
        (changed("dialog/version", True), "dialog.version is true: give 1"),
        (changed("dialog/context/size", 1.0), "dialog.context.size is 1.0: give an integer from 0"),
        (changed("dialog/context/eos-token", []), "dialog.context.eos-token is an empty array: give an array that is"),
        (changed("dialog/context/eos-token", ["x"]), 'dialog.context.eos-token[0] is "x": give an integer from -2147'),
        (changed("dialog/context/eos-token", "x"), 'dialog.context.eos-token is "x": give an integer from -2147483648'),
        (changed("dialog/sampler/top-p", 1.5), "dialog.sampler.top-p is 1.5: give a number from 0 to 1"),
        (changed("dialog/sampler/temp", 1e39), "dialog.sampler.temp is 1e+39: give a number from 0 that float32 holds"),
        (
            changed("dialog/sampler/type", "custom"),
            "dialog.sampler lacks 'callback-name', which the type 'custom' need",
        ),
        (changed("dialog/spd", {"version": 1, "draft-len": 1}), "dialog.spd does not go with the type 'basic'"),
        (changed("dialog/type", "spd"), "dialog lacks 'spd', which the type 'spd' needs"),
        (changed("dialog/engine", [ENGINE]), "dialog.engine is an array: a dialog of the type 'basic' has one engine"),
        (changed("dialog/engine/role", "draft"), "dialog.engine.role does not go with the type 'basic'"),
        (changed("dialog/embedding/type"), "dialog.embedding.lut-path does not go with no type"),
        (
            changed("dialog/engine/model/positional-encoding", {"type": "rope"}),
            "dialog.engine.backend.QnnHtp.pos-id-dim says again what model.positional-encoding says",
        ),
        (changed("dialog/engine/backend/QnnHtp/shared-engine", True), "shared-engine needs allow-async-init"),
        (changed("dialog/engine/backend/QnnHtp/poll", "yes"), 'QnnHtp.poll is "yes": give true or false'),
        (changed("dialog/engine/backend/QnnHtp/cpu-mask", "x" * 60), ""),
        (changed("dialog/engine/backend/QnnHtp/poll", "x" * 60), f'poll is "{"x" * 39}...: give'),
        (changed("dialog/engine/backend/QnnHtp/poll", "\x9b"), r'poll is "\x9b": give'),
        (changed("dialog/\x1b[2J", 1), r"dialog.\x1b[2J is a key that is not known"),
    ],
)
def test_what_is_said(data: Any, wanted: str) -> None:
    found = said(data)
    assert any(wanted in text for text in found) if wanted else not found, found


@pytest.mark.parametrize("place", ["temp", "token-penalty/presence-penalty"])
def test_the_bound_of_numbers_is_the_library_s(place: str) -> None:
    """It is the largest float32 written with ten digits: found by asking."""
    for value, taken in ((3.402823466e38, True), (3.4028234660000005e38, False), (3.4028234663852886e38, False)):
        data = changed("dialog/sampler", {"version": 1, "token-penalty": {"version": 1}})
        *around, last = place.split("/")
        block = data["dialog"]["sampler"][around[0]] if around else data["dialog"]["sampler"]
        block[last] = value
        assert (said(data) == []) is taken, value


def test_a_key_far_from_any_is_answered_with_all() -> None:
    (text,) = said(changed("dialog/tokenizer/qqq", 1))
    assert text.endswith("not known there; its keys are version, path: mend it or take it out")
    (text,) = said(changed("dialog/context/n_vocab", 1))
    assert "did you mean 'n-vocab'?" in text
    assert set(CONTEXT.required) == {"version", "size", "n-vocab", "bos-token", "eos-token"}


def test_keys_written_twice() -> None:
    document = parse('{"sampler": {"version": 1,\n "seed": 1,\n "seed": 2}}', "s.json")
    config = config_of(document, "sampler")
    assert config == Config("sampler", {"sampler": {"version": 1, "seed": 2}}, config.notes)
    assert config.notes == ("s.json, line 3: sampler.seed is written twice, the last one holds",)
    with pytest.raises(GenieError, match=r"line 2: sampler is written twice at the top"):
        config_of(parse('{"sampler": {"version": 1},\n"sampler": {"version": 1}}'), "sampler")


ROPE = {"type": "rope", "rope-dim": 64, "rope-theta": 10000}


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [
        ({}, None),
        ({"kv-dim": ...}, "backend.QnnHtp lacks 'kv-dim'"),
        ({"cpu-mask": "all"}, "QnnHtp.cpu-mask is no mask"),
        ({"cpu-mask": "12"}, None),
        ({"positional-encoding": ROPE}, None),
        ({"positional-encoding": {}}, "model.positional-encoding is empty"),
        ({"positional-encoding": [ROPE, {}]}, "model.positional-encoding[1] is empty"),
        ({"positional-encoding": {"type": "rope", "rope-theta": 1}}, "positional-encoding lacks 'rope-dim'"),
        ({"positional-encoding": {"rope-theta": 1}}, None),
        ({"positional-encoding": {**ROPE, "rope-scaling": {"rope-type": "llama3", "factor": 1}}}, "'low-freq-factor'"),
        ({"positional-encoding": {**ROPE, "rope-scaling": {"rope-type": "longrope", "factor": 1, "short-factor": [1],
            "long-factor": ["x"], "original-max-position-embeddings": 1}}}, "long-factor holds what is no number"),
        ({"longcontext": {"version": 1, "type": "keydiff"}}, "engine.longcontext lacks 'keydiff'"),
        ({"longcontext": {"version": 1, "type": "sliding-window"}}, None),
        ({"cache-groups": [{"version": 1, "prefix": "a"}]}, "no group with the prefix 'past_'"),
        ({"shared-engine": True, "allow-async-init": True}, None),
        ({"shared-engine": True, "allow-async-init": True, "direct-io": True}, "direct-io is a key that is not known"),
    ],
)  # fmt: skip
def test_what_a_dialog_that_was_taken_stumbles_over(engine: dict[str, Any], wanted: str | None) -> None:
    data = copy.deepcopy(DIALOG)
    block: Any = data["dialog"]["engine"]
    for name, value in engine.items():
        if name == "positional-encoding":
            block["model"][name] = value
            del block["backend"]["QnnHtp"]["pos-id-dim"], block["backend"]["QnnHtp"]["rope-theta"]
        elif name in ("longcontext", "cache-groups"):
            block[name] = value
        elif value is ...:
            del block["backend"]["QnnHtp"][name]
        else:
            block["backend"]["QnnHtp"][name] = value
    found = config_of(parse(json.dumps(data)), "dialog").notes
    assert found == () if wanted is None else wanted in found[0], found
    node = said({"text-generator": data["dialog"]}, "node")
    assert (node == []) is (wanted is None), node


def test_nodes(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_text(json.dumps({"text-generator": DIALOG["dialog"]}))
    assert read_generator(path).context.size == 4096
    path.write_text(json.dumps({"text-encoder": {"version": 1, "type": "lut"}}))
    with pytest.raises(GenieError, match="text-encoder lacks 'tokenizer'"):
        read_generator(path)
    lut = {"version": 1, "size": 4, "lut-path": "x"}
    node = {"version": 1, "type": "lut", "tokenizer": {"version": 1, "path": "t"}, "lut": lut}
    path.write_text(json.dumps({"lut-encoder": node, "zoo": 1}))
    assert read_config(path, "node").top == "lut-encoder"
    with pytest.raises(GenieError, match="is a lut-encoder node"):
        read_generator(path)
    assert said({"image-encoder": {"version": 1}}, "node") == ["image-encoder lacks 'engine': add it"]
    assert said({}, "node") == [
        "the top level has no 'text-generator' or 'text-encoder' or 'lut-encoder' or 'image-encoder': give a file that "
        "has it"
    ]


def test_engines_encoders_and_samplers(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    block = {"version": 1, "context": DIALOG["dialog"]["context"], "engine": {**ENGINE, "role": "draft"}}
    path.write_text(json.dumps({"standalone-engine": {**block, "embedding": {"version": 1, "size": 8}}}))
    engine = read_engine(path)
    assert (engine.context.eos, engine.engine.role, engine.embedding) == ((2, 3), "draft", Embedding(8))

    htp = {
        "version": 1, "use-mmap": True, "spill-fill-bufsize": 0, "pooled-output": True, "allow-async-init": False,
    }  # fmt: skip
    backend = {"version": 1, "type": "QnnHtp", "QnnHtp": htp}
    model = {"version": 1, "type": "binary", "binary": {"version": 1, "ctx-bins": ["v.bin"]}}
    encoder = {
        "version": 1, "tokenizer": {"version": 1, "path": "t.json"},
        "context": {"version": 1, "n-vocab": 100, "ctx-size": 512, "embed-size": 64, "pad-token": 0},
        "engine": {"version": 1, "backend": backend, "model": model},
    }  # fmt: skip
    path.write_text(json.dumps({"embedding": encoder}))
    found = read_encoder(path)
    assert (found.context_size, found.n_vocab, found.width, found.tokenizer) == (512, 100, 64, "t.json")
    assert found.engine is not None
    assert (found.engine.files, found.engine.n_threads, found.table) == (("v.bin",), None, None)

    path.write_text(json.dumps({"image-encoder": {"version": 1, "engine": encoder["engine"]}}))
    found = read_encoder(path, "node")
    assert (found.top, found.width, found.tokenizer) == ("image-encoder", None, None)
    lut = {"version": 1, "size": 4, "lut-path": "x", "quant-param": {"scale": "file", "offset": 2}}
    path.write_text(
        json.dumps({"lut-encoder": {"version": 1, "type": "lut", "tokenizer": encoder["tokenizer"], "lut": lut}})
    )
    assert read_encoder(path, "node").table == Embedding(4, "lut", "x", None, None, 2)
    path.write_text(json.dumps({"text-generator": DIALOG["dialog"]}))
    with pytest.raises(GenieError, match="give one that encodes"):
        read_encoder(path, "node")

    sampler = {"version": 1, "type": "custom", "callback-name": "f"}
    path.write_text(json.dumps({"sampler": sampler}))
    assert read_sampler(path) == Sampler(type="custom", callback="f")
    context = DIALOG["dialog"]["context"]
    path.write_text(json.dumps({"standalone-sampler": {"version": 1, "sampler": {"version": 1}, "context": context}}))
    assert read_sampler(path) == Sampler()


def test_extensions() -> None:
    core = {"core_id": 0, "perf_profile": "burst", "rpc_control_latency": 100, "of_tomorrow": 1}
    data = {"devices": [{"soc_model": 43, "dsp_arch": "v73", "cores": [core]}], "memory": {"mem_type": "shared_buffer"}}
    document = parse(json.dumps(data), "e.json")
    assert problems(document, "extensions") == []
    (text,) = notes(document, "extensions")
    assert "devices[0].cores[0].of_tomorrow is a key that is not known there" in text
    assert said({"device": []}, "extensions") == [
        "device is a key that is not known there (did you mean 'devices'?): mend it or take it out"
    ]
    assert said({"devices": [{"soc_model": "x"}]}, "extensions") == [
        'devices[0].soc_model is "x": give an integer from 0'
    ]
    assert said({"memory": {"mem_type": "shared-buffer"}}, "extensions")[0].startswith(
        "memory.mem_type is \"shared-buffer\" (did you mean 'shared_buffer'?)"
    )


def test_writing_refuses_what_the_library_would(tmp_path: Path) -> None:
    with pytest.raises(GenieError, match="lacks 'type'"):
        write_config(tmp_path / "d.json", "dialog", changed("dialog/type"))
    assert not (tmp_path / "d.json").exists()


def test_damaged_files_are_refused_by_name_or_read() -> None:
    rng = random.Random(3)
    text = json.dumps(DIALOG).encode()
    for _ in range(400):
        damaged = bytearray(text)
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(damaged))
            damaged[place : place + rng.randrange(3)] = rng.choice([b"", b"\0", b"{", b'"', b"]", b"\xff", b"9", b"-"])
        with contextlib.suppress(GenieError):
            assert config_of(parse(bytes(damaged)), "dialog").top == "dialog"
