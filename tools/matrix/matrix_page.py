"""Writes docs/supported.md and the READMEs' table of families from the cells."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from cells import BOUNDS, COLUMNS, FLOAT32, GOLDENS, SAME_WEIGHTS, Cell

from edgewright.models import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "supported.md"
READMES = {
    "README.md": "{families} `model_type`s, {rows} checkpoints: {right} cells right, {refused} refused, 0 wrong",
    "README.zh-CN.md": "{families} 个 `model_type`，{rows} 个检查点：{right} 格正确，{refused} 格拒绝，0 格错误",
}
MARKS = ("<!-- families:begin -->", "<!-- families:end -->")

HEAD = f"""# Supported model families

Every row is a tiny checkpoint with random weights, every column a way in which a runtime uses a model. The reference is
transformers (eager, float32; versions in `tools/goldens`). A cell is **right**, or **refused** before anything is
computed, by the sentence under the table. There is no third kind: `make matrix` fails on one, and so do the tests.

| column | what is done | bound |
|---|---|---|
| prefill | all tokens at once | {FLOAT32:g} of the largest logit |
| chunked | several splits into chunks | {FLOAT32:g} |
| decode | token by token from the first | {FLOAT32:g} |
| boundaries | decode across every window, chunk, growth of the cache and rope boundary of the config | {FLOAT32:g} |
| batch 3 | three rows of different lengths (left padding taken off), then decoded together | {FLOAT32:g} |
| two turns | the end of a turn taken back, and a second turn | {FLOAT32:g} |
| float16 | weights in float16 | {BOUNDS["float16"]:g} of the largest logit |
| int8 | recipe `int8` | KL {BOUNDS["int8"]:g} nats; against the portable graph over the same weights {SAME_WEIGHTS:g} |
| int4 | recipe `int4` | KL {BOUNDS["int4"]:g} nats, the weights being random; over the same weights {SAME_WEIGHTS:g} |

```sh
make matrix
```

prints the figures and writes this page.
"""


def family_of(row: str) -> str:
    """Return a row's model_type."""
    config = json.loads((GOLDENS / row / "config.json").read_text(encoding="utf-8"))
    return str(config["model_type"])


def about(family: str) -> str:
    """Return what a family's file says it is, in one line."""
    doc = importlib.import_module(f"edgewright.models.{family}").__doc__ or ""
    return doc.split("\n\n")[0].replace("\n", " ").strip()


def read(text: str) -> dict[str, dict[str, Cell]]:
    """Return the cells that a page shows, without their errors; raises ValueError on a cell of another kind."""
    sentences = dict(re.findall(r"^\((\d+)\) (.+)$", text, re.MULTILINE))
    _, table = text.split("\n## The matrix\n")
    lines = [line.strip("|").split("|") for line in table.split("\n## ")[0].splitlines() if line.startswith("|")]
    head, _, *rows = [[part.strip() for part in line] for line in lines]
    results: dict[str, dict[str, Cell]] = {}
    for name, *shown in rows:
        results[name.strip("`")] = cells = {}
        for column, word in zip(head[1:], shown, strict=True):
            refused = re.fullmatch(r"refused \((\d+)\)", word)
            if word != "right" and not refused:
                raise ValueError(f"{name} {column} is {word!r}")
            cells[column] = Cell(refused=sentences[refused[1]]) if refused else Cell()
    return results


def counts(results: Mapping[str, Mapping[str, Cell]]) -> dict[str, int]:
    """Return the numbers of families, rows, right and refused cells."""
    cells = [cell for row in results.values() for cell in row.values()]
    refused = sum(bool(cell.refused) for cell in cells)
    return {"families": len(FAMILIES), "rows": len(results), "right": len(cells) - refused, "refused": refused}


def page(results: Mapping[str, Mapping[str, Cell]]) -> str:
    """Return docs/supported.md."""
    lines = [HEAD, "## Families", "", "| `model_type` | what it is | rows |", "|---|---|---|"]
    rows: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for row in results:
        rows[family_of(row)].append(row)
    lines += [f"| `{family}` | {about(family)} | {len(rows[family])} |" for family in FAMILIES]
    lines += ["", "## The matrix", "", f"| row | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    sentences: dict[str, int] = {}
    for row, cells in results.items():
        shown = []
        for column in COLUMNS:
            refusal = cells[column].refused
            number = sentences.setdefault(refusal, len(sentences) + 1) if refusal else 0
            shown.append(f"refused ({number})" if refusal else "right")
        lines.append(f"| `{row}` | {' | '.join(shown)} |")
    lines += ["", *(f"({number}) {sentence}" for sentence, number in sentences.items())]
    lines += ["", "## The rows", "", "| row | `model_type` | what it holds |", "|---|---|---|"]
    for row in results:
        case = json.loads((GOLDENS / row / "case.json").read_text(encoding="utf-8"))
        lines.append(f"| `{row}` | `{family_of(row)}` | {case['about']} |")
    return "\n".join(lines).rstrip() + "\n"


def readme_block(name: str, numbers: Mapping[str, int]) -> str:
    """Return what stands between the marks of a README."""
    families = ", ".join(f"`{family}`" for family in FAMILIES)
    return f"{families}: {READMES[name].format(**numbers)}"


def write(results: Mapping[str, Mapping[str, Cell]]) -> None:
    """Write the page and the READMEs' blocks."""
    PAGE.write_text(page(results), encoding="utf-8")
    numbers = counts(results)
    for name in READMES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        before, rest = text.split(MARKS[0])
        _, after = rest.split(MARKS[1])
        path.write_text(f"{before}{MARKS[0]}{readme_block(name, numbers)}{MARKS[1]}{after}", encoding="utf-8")
