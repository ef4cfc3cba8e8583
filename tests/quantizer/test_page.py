"""The page of a quantized checkpoint: complete, well formed, harmless, and true to its figures."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.errors import OutputError
from edgewright.quantizer.page import DRAWN, page, write_page
from edgewright.quantizer.report import BINS, ModuleReport
from edgewright.report.charts import columns, histogram
from html_pages import Reader

RECORD = {
    "sources": [{"name": "a <b>.txt"}],
    "sequences": 12,
    "tokens": 34567,
    "seed": 9,
    "truncated": {"sequences": 2, "tokens": 1234},
    "padding_dropped": 56,
    "duplicates_dropped": 7,
    "too_short_dropped": 8,
}
COMPARISON = {
    "reference": {"name": "original", "bytes": 4000, "perplexity": 12.345, "perplexity_error": None},
    "text": {"sources": [{"name": "held.txt"}], "windows": 3, "length": 64, "seed": 5, "positions": 192},
    "candidates": [
        {
            "name": "after<1>",
            "bytes": 1000,
            "formats": {"int4": 2},
            "judgement": {
                "kl": 0.01234,
                "kl_error": 0.001,
                "kl_windows_error": 0.002,
                "perplexity": 12.6,
                "perplexity_error": 0.5,
                "loss_change": 0.02,
                "loss_change_error": 0.003,
                "top1": 0.915,
            },
        }
    ],
    "notes": ["a note"],
}


def reports(count: int, seed: int = 0) -> list[ModuleReport]:
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        ratio = float(rng.uniform(5, 40))
        counts = [tuple(int(n) for n in rng.integers(0, 1000, BINS)) for _ in range(2)]
        found.append(
            ModuleReport(
                module=f"model.layers.{index}.mlp.up_proj",
                kind="body",
                format="int4 group 32",
                algorithm="gptq",
                activation="int8 dynamic token" if index % 2 else None,
                shape=(4, 32),
                bytes=80,
                float_bytes=512,
                weight_rmse=0.01,
                weight_sqnr_db=ratio,
                cosine=0.99,
                output_error=10 ** (-ratio / 10),
                output_sqnr_db=ratio,
                dead_inputs=3 if index == 1 else 0,
                limit=0.5,
                histogram=(counts[0], counts[1]),
            )
        )
    return found


def read(html: str) -> str:
    """Check that a page is well formed and loads nothing; returns its text."""
    reader = Reader()
    reader.feed(html)
    assert reader.loads == []
    assert reader.open == []
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))
    return " ".join(" ".join(reader.text).split())


def test_everything_is_on_it() -> None:
    found = reports(13)
    html = page("mine <i>", found, RECORD, COMPARISON, count=5)
    text = read(html)
    for part in (
        "mine <i>", "a <b>.txt: 12 sequences, 34,567 tokens, seed 9", "2 sequences truncated by 1,234 tokens",
        "56 padding tokens", "1,040 bytes instead of 6,656 in float32, in 13 modules", "13 × int4 group 32",
        "6 × int8 dynamic token", "model.layers.1.mlp.up_proj : 3 of 32", "original", "after<1>", "0.0123 ± 0.002",
        "± 0.001", "12.6 ± 0.5", "0.02 ± 0.003", "91.5%", "held.txt: 3 windows of 64 tokens, seed 5", "a note",
    ):  # fmt: skip
        assert part in text, part
    assert html.count("<svg") == 1 + DRAWN
    marked = re.findall(r'<td class="bad"><code class="name">([^<]+)', html)
    by_loss = sorted(found, key=lambda report: report.output_sqnr_db or 0)
    assert sorted(marked) == sorted(report.module for report in by_loss[:5])
    for report in found:
        assert f"{report.output_sqnr_db:.1f}" in text
        assert f"{report.output_error:.2e}" in text


@pytest.mark.parametrize("count", [0, 1, 3])
def test_what_is_not_there_is_left_out(count: int) -> None:
    text = read(page("r", reports(count), {}))
    assert ("no data" in text) == (count > 0)
    assert "Before and after" not in text
    assert ("dead inputs" in text) == (count > 0)


def test_without_statistics_weights_decide() -> None:
    bare = [dataclasses.replace(r, output_error=None, output_sqnr_db=None) for r in reports(4)]
    html = page("r", bare, {})
    read(html)
    assert "Output SQNR in dB by module" not in html
    unlost = [dataclasses.replace(r, weight_sqnr_db=None) for r in bare]
    read(page("r", unlost, {}))


def test_writing(tmp_path: Path) -> None:
    write_page(tmp_path / "new" / "page.html", "r", reports(2), {}, COMPARISON)
    read((tmp_path / "new" / "page.html").read_text(encoding="utf-8"))
    with pytest.raises(OutputError, match="can't be written"):
        write_page(tmp_path, "r", reports(2), {})


def edges(chart: dict[str, Any] | None) -> list[tuple[float, float]]:
    assert chart is not None
    for bar in chart["bars"]:
        assert chart["left"] <= bar["x"] <= chart["right"]
        assert bar["y"] + bar["height"] == pytest.approx(chart["floor"], abs=0.51)
    return [(bar["height"], bar["bad"]) for bar in chart["bars"]]


def test_columns_are_as_high_as_their_values() -> None:
    drawn = edges(columns([("a", 10.0), ("b", 20.0), ("c", -1.0)], [1]))
    assert drawn[1][0] == pytest.approx(2 * drawn[0][0], abs=0.02)
    assert [bad for _, bad in drawn] == [False, True, False]
    assert columns([]) is None
    assert columns([("a", 0.0)]) is None


def test_a_histogram_shows_both_sets_and_no_empty_bins() -> None:
    chart = histogram({"before": [0, 4, 1], "after": [9, 0, 0]}, 3.0)
    drawn = edges(chart)
    assert [bad for _, bad in drawn] == [False, False, True]
    assert drawn[0][0] == pytest.approx(drawn[2][0] * 2 / 3, abs=0.02)
    assert chart is not None
    assert chart["bars"][2]["title"] == "after near -2: 9"
    assert histogram({"before": [0, 0], "after": [0, 0]}, 1.0) is None
