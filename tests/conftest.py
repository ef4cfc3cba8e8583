"""What the tests of the core share: golden checkpoints, tensors made of arrays, engines of stages."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import tokenizers
from hypothesis import settings

from edgewright.build.pipeline import deploy
from edgewright.bundle.settings import EngineSettings
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.contract import StageContract, TensorContract
from edgewright.dialects import LOWERINGS
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import Recipe
from edgewright.quant.recipe_file import load_recipe
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine

TEXT_GOLDENS = Path(__file__).parent / "goldens" / "text"
CASES = sorted(path.name for path in TEXT_GOLDENS.iterdir())
#: Checkpoints with a tokenizer and, some of them, a chat template.
TOKENIZERS = Path(__file__).parent / "goldens" / "tokenizers"

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("edgewright", deadline=None, derandomize=True)
settings.load_profile("edgewright")


class ArrayTensor(StoredTensor):
    """A stored tensor of a checkpoint that is an array in memory; `dtype` may lie, for tests that want it to."""

    def __init__(self, name: str, values: np.ndarray, dtype: str = "float32") -> None:
        self.name, self.values, self.shape, self.dtype = name, values, tuple(values.shape), dtype
        self.nbytes = values.nbytes

    def rows(self, start: int, stop: int) -> np.ndarray:
        return self.values[start:stop].astype(np.float32)

    def raw(self, start: int, stop: int) -> np.ndarray:
        part = np.ascontiguousarray(self.values[start:stop])
        return part.view(np.uint8).reshape(stop - start, -1)


@dataclasses.dataclass(frozen=True)
class Golden:
    """A checkpoint and what transformers computes for it: `ids` [64], `logits` [64, V], a batch of 3 by 20."""

    name: str
    checkpoint: Checkpoint
    expected: Mapping[str, np.ndarray]

    @property
    def ids(self) -> np.ndarray:
        return self.expected["ids"][0]

    @property
    def logits(self) -> np.ndarray:
        return self.expected["logits"]


def golden(case: str) -> Golden:
    """Read a golden case."""
    folder = TEXT_GOLDENS / case
    with np.load(folder / "expected.npz") as data:
        return Golden(case, open_checkpoint(folder), dict(data))


def changed(checkpoint: Checkpoint, **keys: Any) -> Checkpoint:
    """Return the checkpoint with config keys set, or with the value `...` removed."""
    config = {**checkpoint.config, **keys}
    return dataclasses.replace(checkpoint, config={k: v for k, v in config.items() if v is not ...})


def with_tensors(checkpoint: Checkpoint, **tensors: Any) -> Checkpoint:
    """Return the checkpoint with other tensors (`ArrayTensor`), or with the value `...` without them."""
    merged = {**checkpoint.tensors, **tensors}
    return dataclasses.replace(checkpoint, tensors={k: v for k, v in merged.items() if v is not ...})


def arrays(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return all tensors as float32 arrays."""
    return {name: tensor.read() for name, tensor in checkpoint.tensors.items()}


def lowered(checkpoint: Checkpoint, dialect: str, recipe: str | Recipe = "float32", **options: Any) -> Stage:
    """Build, quantize and lower the llm stage."""
    stage = build_llm(checkpoint, **options)
    quantize_stage(stage, load_recipe(recipe) if isinstance(recipe, str) else recipe)
    return LOWERINGS[dialect](stage)


def engine_of(stage: Stage, folder: Path, optimization: str = "all") -> OnnxRuntimeEngine:
    """Write a lowered stage into `folder` and load it on one thread."""
    write_stage(stage, folder)
    return OnnxRuntimeEngine(folder / MODEL_FILE, stage.contract, EngineSettings(optimization=optimization), threads=1)


MakeEngine = Callable[..., OnnxRuntimeEngine]


@pytest.fixture
def make_engine(tmp_path: Path) -> MakeEngine:
    """A function (checkpoint, dialect, recipe, **options of build_llm) -> Engine."""
    count = 0

    def make(
        checkpoint: Checkpoint, dialect: str = "onnxruntime", recipe: str | Recipe = "float32", **options: Any
    ) -> OnnxRuntimeEngine:
        nonlocal count
        count += 1
        return engine_of(lowered(checkpoint, dialect, recipe, **options), tmp_path / f"stage{count}")

    return make


@pytest.fixture(scope="session")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> MakeEngine:
    """A function (case, dialect, recipe) -> the Engine of an unchanged golden, made once for all tests."""
    folder = tmp_path_factory.mktemp("engines")

    @functools.cache
    def make(case: str, dialect: str = "onnxruntime", recipe: str = "float32") -> OnnxRuntimeEngine:
        return engine_of(lowered(golden(case).checkpoint, dialect, recipe), folder / f"{case}-{dialect}-{recipe}")

    return make


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest absolute difference over the largest magnitude wanted."""
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests out of the user's cache; they build every step, but for those that ask for the store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(os.environ, "EDGEWRIGHT_CACHE_BYTES", "0")
        yield


def read_config(case: str, name: str = "config.json") -> dict[str, Any]:
    """Return a golden's config by file name."""
    config: dict[str, Any] = json.loads((TEXT_GOLDENS / case / name).read_text(encoding="utf-8"))
    return config


Build = Callable[..., Any]


def run_graph(build: Build, feeds: Mapping[str, np.ndarray], outputs: int = 1, dialect: str = "portable") -> Any:
    """Build a graph whose inputs are `feeds` with `build(g, *values)`, lower it, run it; return its outputs."""
    stage = Stage("test", ir.Graph([], [], nodes=[], name="test"), StageContract((), ()))
    g = GraphBuilder(stage)
    contracts = [TensorContract(name, str(array.dtype), tuple(array.shape)) for name, array in feeds.items()]
    results = build(g, *[g.input(contract) for contract in contracts])
    for index, value in enumerate(results if isinstance(results, tuple) else (results,)):
        g.stage.graph.outputs.append(value)
        value.name = f"out{index}"
        value.type = ir.TensorType(ir.DataType.FLOAT)
    model = ir.to_proto(LOWERINGS[dialect](stage).model())
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    got = session.run(None, dict(feeds))
    assert len(got) == outputs
    return got[0] if outputs == 1 else tuple(got)


#: A byte-level tokenizer of the 95 printable ASCII characters and two special tokens: the vocabulary of golden qwen3.
BOS, EOS = 95, 96
CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)


def tokenizer_json() -> str:
    """Return `tokenizer.json` of that tokenizer."""
    vocab = {"\u0120" if code == 32 else chr(code): code - 32 for code in range(32, 127)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab | {"<bos>": BOS, "<eos>": EOS}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    return str(tokenizer.to_str())


def write_source(folder: Path, case: str = "qwen3") -> Path:
    """Make a complete Hugging Face folder of a golden of 97 tokens: tokenizer, template, generation config."""
    shutil.copytree(TEXT_GOLDENS / case, folder)
    for name in ("expected.npz", "case.json", "config.v4.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, BOS]}), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete checkpoint folder; not to be changed."""
    return write_source(tmp_path_factory.mktemp("source") / "tiny-qwen3")


MakeBundle = Callable[..., Path]


@pytest.fixture(scope="session")
def shared_bundle(source: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeBundle:
    """A function (recipe) -> an unverified bundle of `source`, made once for all tests and not to be changed."""
    folder = tmp_path_factory.mktemp("bundles")

    @functools.cache
    def make(recipe: str = "int4") -> Path:
        return deploy(source, folder / recipe, recipe=recipe, verify=False).path

    return make


@pytest.fixture
def own_bundle(shared_bundle: MakeBundle, tmp_path: Path) -> MakeBundle:
    """A function (recipe) -> a copy of the shared bundle, to be damaged."""

    def make(recipe: str = "int4") -> Path:
        return Path(shutil.copytree(shared_bundle(recipe), tmp_path / f"own-{recipe}"))

    return make
