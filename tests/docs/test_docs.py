"""The documentation is true: its commands run, its links lead somewhere, its tables are the code's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import cells
import matrix_page
import pytest

from edgewright import nn
from edgewright.calibration.images import MAX_PIXELS
from edgewright.checkpoint import gguf, gguf_blocks, gguf_tokenizer, safetensors
from edgewright.checkpoint.layouts import READERS
from edgewright.cli._main import _EXIT_CODES, VERBS
from edgewright.formats import ACTIVATIONS
from edgewright.models import FAMILIES, _rules
from edgewright.nn import rope
from edgewright.ops import OPS
from edgewright.quant.recipe import KINDS, Algorithm, Data
from edgewright.quant.recipe_file import _ALGORITHMS, _STAGE, _TOP, FORMATS, GROUPS, builtin_names, load_recipe
from edgewright.runtime.sampling import SamplingParams
from edgewright.runtime.session import FIRST_CAPACITY, PREFILL_CHUNK
from edgewright.runtime.template import MAX_SOURCE_CHARS
from edgewright.targets.platform import shipped_platforms
from edgewright.verify.thresholds import CACHE_ENGINE, CACHE_QUALITY, ENGINE, INPUT_QUALITY, QUALITY

from .markdown import Block, anchors, blocks, commands, links, tables

ROOT = Path(__file__).parents[2]
MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
ALL_PAGES = [*PAGES, CHINESE, ROOT / "CHANGELOG.md"]
#: Commands that set things up: they are looked up, not run.
_SETUP = re.compile(r"(make|pip install) (.+)")
#: One command of the documentation may take this long.
TIMEOUT_S = 280

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands work as they do in the project's, shared by all pages so that bundles are, too."""
    if not (ROOT / MODEL).is_file():
        pytest.fail(f"{MODEL} is not there: the documentation's commands need it, run `make fetch` first.")
    work = tmp_path_factory.mktemp("docs")
    (work / "models").mkdir()
    (work / MODEL).symlink_to(ROOT / MODEL)
    (work / "tests").mkdir()
    (work / "tests" / "goldens").symlink_to(ROOT / "tests" / "goldens")
    return work


@pytest.fixture(scope="session")
def done() -> dict[str, Path]:
    """The commands that were run, and the page that had them first."""
    return {}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The virtual environment first on the path, no network, no terminal, the shared folder as working directory."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(folder)


@pytest.mark.real
@each_page
def test_every_block_runs(
    page: Path, environment: None, monkeypatch: pytest.MonkeyPatch, done: dict[str, Path]
) -> None:
    module = ModuleType("documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page):
        if block.language == "sh":
            run_shell(page, block, done)
        elif block.language == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
            exec(code, vars(module))  # noqa: S102 - our own pages


def run_shell(page: Path, block: Block, done: dict[str, Path]) -> None:
    """Run a block's commands; what sets things up is only looked up, what another page ran is not run again."""
    for command in commands(block):
        if done.setdefault(command.text, page) != page:
            continue
        if setup := _SETUP.fullmatch(command.text):
            check_setup(setup[1], setup[2])
            continue
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command.text],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        where = f"{page.name}:{command.line}: {command.text}"
        assert result.returncode == command.exit_code, f"{where}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
        assert "Traceback" not in result.stderr, where


def check_setup(tool: str, rest: str) -> None:
    """Check that a make target, or a requirement's extra, exists."""
    if tool == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert rest in targets, f"the Makefile has no target {rest}"
        return
    requirement = rest.removeprefix("-e ").strip("'")
    name, _, extra = requirement.removesuffix("]").partition("[")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert name in (project["name"], "."), requirement
    assert not extra or extra in project["optional-dependencies"], requirement


def test_shell_blocks_are_marked_as_such() -> None:
    """A command in a block of another name would escape the tests; only what needs torch may."""
    for page in ALL_PAGES:
        for block in blocks(page):
            assert block.language in ("sh", "python", "text"), f"{page.name}:{block.line}"
            if block.language == "text":
                shown = [line for line in block.text.splitlines() if "edgewright " in line]
                assert all(" --live " in line for line in shown), f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_relative_to(ROOT), link
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target) or page.name == "CHANGELOG.md", link


def test_every_page_is_linked_from_the_readme() -> None:
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= set(links(README))


def test_both_readmes_say_the_same() -> None:
    assert [(b.language, b.text) for b in blocks(README)] == [(b.language, b.text) for b in blocks(CHINESE)]
    shape = [[code_of(row) for row in table] for table in tables(README)]
    assert shape == [[code_of(row) for row in table] for table in tables(CHINESE)]
    counts = [
        len(re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE))
        for page in (README, CHINESE)
        for pattern in (r"^## ", r"^- ")
    ]
    assert counts[:2] == counts[2:]


def code_of(row: list[str]) -> list[list[str]]:
    """Return what must be the same in every language: per cell, code spans and link targets."""
    return [re.findall(r"`[^`]+`|\]\([^)]+\)", cell) for cell in row]


def text_of(name: str) -> str:
    """Return a documentation page's text."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def rows_of(name: str, head: str) -> list[list[str]]:
    """Return the rows of the one table of a page whose first head cell is `head`."""
    (found,) = [table for table in tables(ROOT / "docs" / f"{name}.md") if table[0][0] == head]
    return found[1:]


def test_every_verb_and_option_is_mentioned() -> None:
    text = text_of("cli")
    assert [row[0].split()[0].strip("`") for row in rows_of("cli", "verb")] == list(VERBS)
    for verb in VERBS:
        assert f"\n## {verb}\n" in text, verb
        help_text = subprocess.run(
            [sys.executable, "-m", "edgewright", verb, "--help"], capture_output=True, text=True, check=True
        ).stdout
        options = set(re.findall(r"--[a-z-]+", help_text)) - {"--help", "--output", "--threads"}
        missing = {option for option in options if option not in text}
        assert not missing, (verb, missing)


def test_exit_codes_are_those_of_the_help() -> None:
    codes = re.findall(r"^  (\d+) ", _EXIT_CODES, re.MULTILINE)
    assert [row[0] for row in rows_of("cli", "code")] == codes


def table_of(name: str, *head: str) -> list[list[str]]:
    """Return the rows of the one table of a page that has this head."""
    (found,) = [table for table in tables(ROOT / "docs" / f"{name}.md") if table[0] == list(head)]
    return found[1:]


def test_every_recipe_is_shown_as_it_is() -> None:
    rows = table_of("recipes", "name", "body", "algorithm", "lm_head", "embedding", "activations", "cache")
    assert [row[0].strip("`") for row in rows] == builtin_names()
    for name, *cells_of_row in rows:
        recipe = load_recipe(name.strip("`"))
        modules = [("up_proj", "body"), ("down_proj", "body"), ("head", "lm_head"), ("table", "embedding")]
        modules = [(f"model.{module}", kind) for module, kind in modules]
        body, _, head, table = recipe.choices(modules).values()
        labels = [body.weight.label, body.algorithm.name, head.weight.label, table.weight.label]
        inputs = "none" if body.inputs.format is None else body.inputs.format.label
        assert cells_of_row == [*labels, inputs, "none" if recipe.kv is None else recipe.kv.label], name
    for name in builtin_names():
        assert f"`{name}`" in text_of("cli")


def test_the_recipe_language_is_that_of_the_code() -> None:
    formats = table_of("recipes", "format", "`group`", "what is stored", "bits per weight")
    assert names_in(formats) == list(FORMATS)
    for row in formats:
        if "int" in row[0]:
            assert re.findall(r"\d+", row[1]) == [str(group) for group in GROUPS]
    algorithms = table_of("recipes", "name", "options", "what it does")
    assert {row[0].strip("`"): tuple(re.findall("`([^`]+)`", row[1])) for row in algorithms} == _ALGORITHMS
    defaults = vars(Algorithm())
    for row in algorithms:
        for option, default in re.findall(r"`(\w+)` \(([^)]+)\)", row[1]):
            assert str(defaults[option]).lower() == default, option
    assert names_in(table_of("recipes", "`format`", "`mode`", "`scope`")) == list(ACTIVATIONS)
    assert names_in(table_of("recipes", "key", "value")) == list(vars(load_recipe("int4").transforms))
    keys = table_of("recipes", "key", "where", "value")
    assert set(_TOP) == {name for row in keys if "top" in row[1] for name in names_in([row])}
    assert set(_STAGE) == {name for row in keys if "stage" in row[1] for name in names_in([row])} - {"stages"}
    (classes,) = [row[2] for row in keys if row[0] == "`class`"]
    assert set(re.findall("`([^`]+)`", classes)) == set(KINDS)
    (data,) = [row[2] for row in keys if row[0] == "`calibration`"]
    for name in ("sequences", "length", "seed"):
        assert f"`{name}` ({getattr(Data(), name)})" in data


def test_platforms_are_those_of_the_code() -> None:
    rows = table_of("targets", "platform", "hardware", "weights", "activations", "cache")
    found = {row[0].strip("`"): (row[1], *map(formats_in, row[2:])) for row in rows}
    assert found == {name: (p.title, p.weights, p.activations, p.caches) for name, p in shipped_platforms().items()}


def formats_in(cell: str) -> frozenset[str]:
    """Return the formats that a cell lists; a dash stands for none."""
    return frozenset() if cell == "-" else frozenset(cell.split(", "))


def test_algorithms_are_told_what_they_cost() -> None:
    assert names_in(table_of("quantization", "algorithm", "looks at", "wins", "costs")) == list(_ALGORITHMS)


def test_layouts_of_other_tools_are_those_of_the_code() -> None:
    assert set(READERS) <= set(names_in(rows_of("checkpoints", "`quant_method`")))


def test_every_family_is_mentioned() -> None:
    assert [row[0].strip("`") for row in rows_of("supported", "`model_type`")] == list(FAMILIES)


def test_the_matrix_is_of_all_goldens_and_nothing_is_wrong_in_it() -> None:
    text = text_of("supported")
    shown = matrix_page.read(text)
    assert list(shown) == cells.names()
    assert all(tuple(row) == cells.COLUMNS for row in shown.values())
    assert matrix_page.page(shown) == text


def test_a_cell_that_is_neither_right_nor_refused_is_an_error() -> None:
    page = text_of("supported")
    head, table = page.split("## The matrix")
    with pytest.raises(ValueError, match="'wrong'"):
        matrix_page.read(f"{head}## The matrix{table.replace(' right ', ' wrong ', 1)}")
    with pytest.raises(KeyError):
        matrix_page.read(f"{head}## The matrix{table.replace(' right ', ' refused (99) ', 1)}")


def test_the_readmes_count_what_the_matrix_shows() -> None:
    numbers = matrix_page.counts(matrix_page.read(text_of("supported")))
    for name in matrix_page.READMES:
        text = (ROOT / name).read_text(encoding="utf-8")
        (block,) = re.findall(f"{re.escape(matrix_page.MARKS[0])}(.*){re.escape(matrix_page.MARKS[1])}", text)
        assert block == matrix_page.readme_block(name, numbers)


def names_in(rows: list[list[str]]) -> list[str]:
    """Return the code spans of the first cells."""
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]


def test_every_op_and_building_block_is_mentioned() -> None:
    assert sorted(names_in(rows_of("graph", "op"))) == sorted(OPS)
    lowered = rows_of("graph", "semantic")
    assert set(names_in(lowered)) == OPS.keys() - {"Dequantize"}
    assert set(names_in(rows_of("models", "block of `nn`"))) < set(nn.__all__)
    rules = {name for name, value in vars(_rules).items() if hasattr(value, "apply")} - {"Rule"}
    assert set(names_in(rows_of("models", "rule"))) == rules
    assert names_in(rows_of("models", "`rope_type`")) == list(rope._KEYS)


def test_thresholds_are_those_of_the_code() -> None:
    def spelled(value: float | None) -> str:
        return "none" if value is None else f"{value:g}"

    bounds = [("`engine`", "int8 inputs" if rounds else "float32 inputs", t) for rounds, t in ENGINE.items()]
    bounds += [("`quality`", name, t) for name, t in QUALITY.items()]
    expected = [[level, by, spelled(t.kl), spelled(t.max_error), spelled(t.cosine)] for level, by, t in bounds]
    found = [t for t in tables(ROOT / "docs" / "verification.md") if t[0][:2] == ["level", "by"]]
    assert found[0][1:] == expected
    more = [("`engine`", f"cache {name}", t) for name, t in CACHE_ENGINE.items()]
    more += [("`quality`", f"cache {name}", t) for name, t in CACHE_QUALITY.items()]
    more += [("`quality`", f"{bits}-bit inputs", t) for bits, t in INPUT_QUALITY.items()]
    allowances = [[level, by, spelled(t.kl), spelled(t.max_error)] for level, by, t in more]
    assert table_of("verification", "adds to", "for", "KL (nats)", "max error") == allowances


def test_gguf_types_are_those_of_the_code() -> None:
    rows = [row for row in rows_of("checkpoints", "type") if row[1]]
    formats = gguf_blocks.BLOCK_FORMATS.values()
    assert [row[:3] for row in rows] == [[f.name, str(f.bits), str(f.group)] for f in formats]
    for name in gguf_tokenizer.PRE_TOKENIZERS:
        assert f"`{name}`" in text_of("checkpoints")


def test_exact_pass_through_is_said_of_the_right_blocks() -> None:
    (said,) = re.findall(
        r"The second holds for (.+?) under int4 and int8, and for (.+?) under int8", text_of("recipes")
    )
    formats = [f for f in gguf_blocks.BLOCK_FORMATS.values() if f.group == 32]
    by_bits = {4: {f.name for f in formats if f.bits <= 4}, 8: {f.name for f in formats if 4 < f.bits <= 8}}
    assert [set(re.findall(r"Q\w+", part)) for part in said] == [by_bits[4], by_bits[8]]


def test_limits_are_those_of_the_code() -> None:
    for number, page in (
        (safetensors.MAX_HEADER_BYTES, "checkpoints"),
        (gguf.MAX_PAIRS, "checkpoints"),
        (gguf.MAX_TENSORS, "checkpoints"),
        (gguf.MAX_NAME_BYTES, "checkpoints"),
        (MAX_PIXELS, "calibration"),
        (MAX_SOURCE_CHARS, "runtime"),
        (FIRST_CAPACITY, "runtime"),
        (PREFILL_CHUNK, "runtime"),
    ):
        assert f"{number:,}" in text_of(page), number


def test_sampling_defaults_are_those_of_the_code() -> None:
    text = "\n".join(" ".join(row[1:3]) for row in rows_of("runtime", "order"))
    defaults = vars(SamplingParams())
    for name, value in defaults.items():
        line = next(line for line in text.splitlines() if f"`{name}`" in line)
        assert (value is None and "none" in line) or str(value) in line, line


def test_no_machine_or_host_names() -> None:
    for page in ALL_PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"/(work|home|root|tmp)/", text), page.name
        assert str(shutil.which("python3")) not in text, page.name
