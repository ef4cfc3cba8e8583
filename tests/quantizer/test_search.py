"""The choice under a budget, and searches on families of every kind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewright.build import searched
from edgewright.build.pipeline import deploy
from edgewright.build.quantized import calibration_samples
from edgewright.build.searched import search_recipe
from edgewright.calibration import write_shards
from edgewright.calibration.data import Samples
from edgewright.checkpoint import open_checkpoint
from edgewright.errors import CalibrationDataError, EdgewrightError, OutputError, RecipeError, UsageError
from edgewright.formats import FloatFormat, Format, IntFormat, MxFormat, ScaledFormat
from edgewright.models import build_llm
from edgewright.quant.apply import quantizable
from edgewright.quant.kv import KVFormat
from edgewright.quant.recipe import Data
from edgewright.quant.recipe_file import load_recipe, parse_recipe
from edgewright.quantizer.candidates import Candidate, parse_formats
from edgewright.quantizer.cost import file_bytes
from edgewright.quantizer.search import Budget, Decisions, Option, assign, total_cost, total_kl
from edgewright.quantizer.search_check import spearman
from edgewright.quantizer.search_recipe import recipe_text, summary
from edgewright.quantizer.search_run import Found, Request, search

GOLDENS = Path(__file__).parents[1] / "goldens"
INT4, INT8 = IntFormat(4, 32, False, scales="float16"), IntFormat(8, 32, False, scales="float16")


@pytest.mark.parametrize(
    ("text", "kind", "limit"),
    [
        ("size=90MB", "size", 90e6),
        ("SIZE=1.5gb", "size", 1.5e9),
        ("size=1234", "size", 1234),
        ("size=7kB", "size", 7e3),
        ("latency=12ms", "latency", 0.012),
        ("latency=250us", "latency", 250e-6),
        ("kl=0.05", "kl", 0.05),
        ("kl=5e-4", "kl", 5e-4),
    ],
)
def test_budgets(text: str, kind: str, limit: float) -> None:
    budget = Budget.parse(text)
    assert budget.kind == kind
    assert budget.limit == pytest.approx(limit, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    ["", "0MB", "size=0MB", "size=5 parsecs", "size=-3MB", "size=nan", "size=inf", "size=5ms", "latency=5MB",
     "latency=5", "kl=0", "kl=3MB", "kl=", "speed=3", "size=1e999MB"],
)  # fmt: skip
def test_bad_budgets(text: str) -> None:
    with pytest.raises(UsageError, match="is no budget: write size=90MB"):
        Budget.parse(text)


def options(numbers: Sequence[tuple[int, int]]) -> list[Option]:
    return [Option(FloatFormat(f"f{i}"), float(cost), kl / 64) for i, (cost, kl) in enumerate(numbers)]


choices = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=3).map(options)
decisions = st.lists(choices, min_size=1, max_size=5).map(lambda all_: {f"m{i}": o for i, o in enumerate(all_)})


def mixes(given_: Decisions) -> list[dict[str, Option]]:
    return [dict(zip(given_, mix, strict=True)) for mix in itertools.product(*given_.values())]


@settings(max_examples=150)
@given(decisions, st.integers(0, 120), st.integers(0, 9))
def test_cost_budgets(given_: Decisions, room: int, fixed: int) -> None:
    """The budget holds, the loss is the least there is up to one step, and more room never loses more."""
    least = fixed + sum(min(o.cost for o in options_) for options_ in given_.values())
    budget = Budget("size", least + room)
    chosen = assign(given_, budget, fixed)
    assert chosen.keys() == given_.keys()
    assert all(chosen[name] in given_[name] for name in given_)
    assert total_cost(chosen, fixed) <= budget.limit
    best = min(total_kl(mix) for mix in mixes(given_) if total_cost(mix, fixed) <= budget.limit)
    cheap = {name: min(o, key=lambda option: (option.cost, option.kl)) for name, o in given_.items()}
    step = max((cheap[name].kl - option.kl for name, o in given_.items() for option in o), default=0.0)
    assert best - 1e-9 <= total_kl(chosen) <= best + max(step, 0) + 1e-9
    assert total_kl(assign(given_, Budget("size", least + room + 7), fixed)) <= total_kl(chosen) + 1e-9


@settings(max_examples=150)
@given(decisions, st.floats(0, 3))
def test_loss_budgets(given_: Decisions, limit: float) -> None:
    finest = math.fsum(min(o.kl for o in options_) for options_ in given_.values())
    if finest > limit:
        with pytest.raises(UsageError, match="can't be met: the finest formats lose"):
            assign(given_, Budget("kl", limit))
        return
    chosen = assign(given_, Budget("kl", limit))
    assert total_kl(chosen) <= limit
    best = min(total_cost(mix) for mix in mixes(given_) if total_kl(mix) <= limit)
    steps = max(o.cost for options_ in given_.values() for o in options_)
    assert best <= total_cost(chosen) + 1e-9 <= best + steps + 1e-9
    for name, option in chosen.items():  # nothing is dearer than it must be
        for other in given_[name]:
            if other.cost < option.cost and other.kl <= option.kl:
                pytest.fail(f"{name}: {option} and not {other}")


def test_a_budget_below_the_smallest() -> None:
    given_ = {"a": options([(3_000_000, 5), (8_000_000, 0)])}
    with pytest.raises(UsageError, match=r"the cheapest formats take 4 MB and the budget is 3.9 MB"):
        assign(given_, Budget("size", 3.9e6), 1e6)


@pytest.mark.parametrize(
    ("text", "fmt"),
    [
        ("int4", INT4),
        (" int8/64 ", IntFormat(8, 64, False, scales="float16")),
        ("int8/channel", ScaledFormat("int8", "channel")),
        ("fp8/block", ScaledFormat("e4m3", "block")),
        ("mxfp4", MxFormat("e2m1")),
        ("float16", FloatFormat("float16")),
    ],
)
def test_formats(text: str, fmt: Format) -> None:
    found = Candidate.parse(text)
    assert found.format == fmt
    words = ", ".join(f"{key}: {value}" for key, value in found.words)
    sections = "".join(f"{section}: {{{words}}}\n" for section in ("body", "lm_head", "embedding"))
    assert parse_recipe(sections, "r.yaml").body == fmt


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int4,int5", "int5"),
        ("int4/31,int8", "31 is not one of 32, 64, 128"),
        ("float16/32,int4", "group have no meaning for float16"),
        ("int4", "leaves nothing to choose"),
        ("int4,int4/32", "leaves nothing to choose"),
        ("stored,int4", "can't choose the format 'stored'"),
        ("int4,,int8", "is no format"),
        ("int4,{a: b}", "is no format"),
    ],
)
def test_bad_formats(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_formats(text)


def test_spearman() -> None:
    assert spearman([1, 2, 3, 10], [0.1, 0.2, 0.5, 0.6]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)  # 3 / sqrt(10)


def random_rows(case: str, count: int, length: int = 20, seed: int = 0) -> list[np.ndarray]:
    vocab = build_llm(open_checkpoint(GOLDENS / "text" / case), max_context=8).contract.outputs[0].shape[-1]
    rng = np.random.default_rng(seed)
    return [rng.integers(0, int(vocab), length) for _ in range(count)]


def searched_golden(case: str, budget: str, formats: str = "int4,int8", base: str | None = None) -> Found:
    rows = random_rows(case, 5)
    request = Request(Budget.parse(budget), parse_formats(formats), base and load_recipe(base), threads=1)
    return search(open_checkpoint(GOLDENS / "text" / case), rows[:3], rows[3:], request)


def formats_of(found: Found) -> dict[str, Format]:
    return {t.module: found.chosen[d.name].format for d in found.decisions for t in d.targets}


#: Experts, short convolutions, a table a layer and shared caches, tied tables, state spaces beside attention.
@pytest.mark.parametrize(("case", "share"), [("qwen3_moe", 0.5), ("lfm2", 0.2), ("gemma4", 0.7), ("falcon_h1", 0.4)])
def test_families(case: str, share: float) -> None:
    checkpoint = open_checkpoint(GOLDENS / "text" / case)
    stage = build_llm(checkpoint, max_context=8)
    uses = [(use.module, use.kind) for use in quantizable(stage)]
    smallest, largest = (file_bytes(checkpoint, {m: fmt for m, _ in uses}) for fmt in (INT4, INT8))
    limit = int(smallest + share * (largest - smallest))
    found = searched_golden(case, f"size={limit}")
    formats = formats_of(found)
    assert formats.keys() == {m for m, _ in uses}
    assert set(formats.values()) == {INT4, INT8}
    assert found.bytes == file_bytes(checkpoint, formats) <= limit
    assert 1 / 4 < found.judgement.kl / found.estimated_kl < 4  # random weights, few tokens
    recipe = parse_recipe(recipe_text(found, ["made by a test"], None, Data()), "r.yaml")
    assert recipe.resolve(uses) == formats
    for module, choice in recipe.choices(uses).items():
        assert choice.algorithm == found.algorithms[module]
    weights = {target.weight: module for module in formats for d in found.decisions for target in d.targets}
    assert len({d.name for d in found.decisions}) <= len(weights)
    for decision in found.decisions:
        assert len({formats[target.module] for target in decision.targets}) == 1
        if decision.targets[0].kind == "experts":
            assert len(decision.targets) == 3


def test_a_tied_table_is_one_decision() -> None:
    found = searched_golden("gemma3_text", "kl=0.01")
    (tied,) = [d for d in found.decisions if len(d.targets) > 1]
    assert [t.module for t in tied.targets] == ["model.embed_tokens", "lm_head"]
    assert {found.algorithms[t.module].name for t in tied.targets} == {"mse"}
    assert found.judgement.kl <= 0.01
    assert found.evaluations <= 4


def test_floats_and_base_recipes(tmp_path: Path) -> None:
    found = searched_golden("llama", "kl=1e-5", "int4,int8,float16", base="mixed-edge")
    assert found.judgement.kl <= 1e-5
    assert FloatFormat("float16") in formats_of(found).values()
    text = recipe_text(found, [], load_recipe("mixed-edge"), Data(sequences=3))
    recipe = parse_recipe(text, "r.yaml")
    assert recipe.kv == KVFormat("int8", "head")
    assert recipe.data == Data(sequences=3)
    assert sum(summary(found).values()) == len(formats_of(found))


@pytest.mark.parametrize(
    ("base", "what"),
    [("int4-awq", "awq"), ("w8a8", "activations"), ("int8-sq", "activations, smoothing")],
)
def test_bases_that_round_more_than_weights(base: str, what: str) -> None:
    with pytest.raises(RecipeError, match=f"The recipe {base} has {what}, whose effect depends"):
        searched_golden("llama", "kl=0.1", base=base)


@pytest.mark.parametrize("limit", ["1e-9", "1e-7"])
def test_a_loss_that_cannot_be_reached_is_said(limit: str) -> None:
    words = r"with the finest of the formats the KL measures \d.*allow more, or finer"
    with pytest.raises(UsageError, match=words) as caught:
        searched_golden("llama", f"kl={limit}")
    assert str(caught.value).endswith(".")


def test_a_latency_that_cannot_be_reached_is_said() -> None:
    with pytest.raises(UsageError, match=r"the cheapest formats take [\d.]+ ms and the budget is 1e-06 ms"):
        searched_golden("llama", "latency=0.000001ms")


@pytest.mark.parametrize("case", ["llama", "qwen3_moe"])
def test_latency(case: str) -> None:
    """With all the time in the world every module gets what loses least."""
    found = searched_golden(case, "latency=100s")
    for decision in found.decisions:
        assert found.chosen[decision.name].format == INT8 or found.options[decision.name].kl == 0
    assert found.seconds is not None
    assert 0 < found.seconds[1] < 100


def shards(folder: Path, case: str, count: int, seed: int = 0) -> Path:
    rows = tuple(random_rows(case, count, seed=seed))
    samples = samples_of(rows)
    write_shards(folder, samples.rows, samples.record)
    return folder


def samples_of(rows: tuple[np.ndarray, ...]) -> Samples:
    return Samples(rows, {"kind": "tokens", "sources": [], "notes": []})


def search_file(tmp_path: Path, name: str, sequences: int = 6, seed: int = 0, force: bool = False) -> Path:
    data = Data(str(tmp_path / "set"), sequences, 16, seed)
    request = Request(Budget.parse("size=60kB"), parse_formats("int4,int8"), threads=1)
    spelled = {"budget": "size=60kB"}
    path = tmp_path / name
    search_recipe(GOLDENS / "text" / "llama", path, request, data, spelled, force=force)
    return path


def test_the_file_builds_what_was_promised(tmp_path: Path) -> None:
    """Bit for bit the same for a seed, taken over by a build, and as large as it said."""
    shards(tmp_path / "set", "llama", 9)
    first, again = search_file(tmp_path, "a.yaml"), search_file(tmp_path, "b.yaml")
    assert first.read_bytes() == again.read_bytes()
    head = first.read_text().splitlines()
    assert head[0] == "# made by edgewright search --budget size=60kB"
    assert "seed 0" in head[1]
    built = deploy(GOLDENS / "text" / "llama", tmp_path / "bundle", recipe=str(first), verify=False)
    size = (built.path / "stages" / "llm" / "weights.bin").stat().st_size
    assert head[2].startswith(f"# weights of {size:,} bytes; KL ")
    assert size <= 60_000
    other = search_file(tmp_path, "a.yaml", seed=1, force=True)
    assert "seed 1" in other.read_text().splitlines()[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml", "b.yaml", "bundle", "set"]


def test_few_rows_are_shared_out(tmp_path: Path) -> None:
    shards(tmp_path / "set", "llama", 3)
    assert load_recipe(str(search_file(tmp_path, "a.yaml", 64))).data.sequences == 2
    shards(tmp_path / "one", "llama", 1)
    (tmp_path / "set").rename(tmp_path / "old")
    (tmp_path / "one").rename(tmp_path / "set")
    with pytest.raises(CalibrationDataError, match="needs two sequences or more"):
        search_file(tmp_path, "b.yaml")
    assert not (tmp_path / "b.yaml").exists()


def test_places(tmp_path: Path) -> None:
    shards(tmp_path / "set", "llama", 3)
    (tmp_path / "there.yaml").write_text("mine")
    with pytest.raises(OutputError, match=r"there.yaml exists already"):
        search_file(tmp_path, "there.yaml")
    with pytest.raises(OutputError, match="set exists and is no file"):
        search_file(tmp_path, "set", force=True)
    assert (tmp_path / "there.yaml").read_text() == "mine"


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards(tmp_path / "set", "llama", 3)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))

    def stop(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(searched, "recipe_text", stop)
    with pytest.raises(KeyboardInterrupt):
        search_file(tmp_path, "a.yaml")
    monkeypatch.setattr("edgewright.quantizer.search_run.file_bytes", stop)
    with pytest.raises(KeyboardInterrupt):
        search_file(tmp_path, "a.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "set"]
    assert not list((tmp_path / "scratch").iterdir())


def test_as_good_as_greedy_with_a_twentieth_of_the_evaluations() -> None:
    """On a trained model: the estimate ranks as single measurements do, and so does the mix it leads to."""
    checkpoint = open_checkpoint(GOLDENS / "trained")
    rows = calibration_samples(checkpoint, Data(sequences=30, length=128)).rows
    request = Request(Budget.parse("size=900kB"), parse_formats("int4,int8"), check=True, threads=1)
    found = search(checkpoint, rows[:24], rows[24:], request)
    check = found.check
    assert check is not None
    assert check.singles == 60
    assert check.greedy_evaluations == 61
    assert check.search_evaluations == pytest.approx(found.evaluations + found.probing)
    assert check.correlation > 0.9
    assert check.as_good
    assert check.fewer >= 20


def test_a_tiny_check() -> None:
    rows = random_rows("llama", 10)
    request = Request(Budget.parse("kl=0.01"), parse_formats("int4,int8"), check=True, threads=1)
    found = search(open_checkpoint(GOLDENS / "text" / "llama"), rows[:4], rows[4:], request)
    assert found.check is not None
    assert found.check.correlation > 0.85
    assert found.check.found_kl == found.judgement.kl <= 0.01


def test_errors_are_sentences() -> None:
    with pytest.raises(EdgewrightError) as caught:
        searched_golden("llama", "size=1")
    assert str(caught.value).endswith(".")
