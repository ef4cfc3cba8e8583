"""The page of an evaluation: complete, well formed, harmless, and true to its figures."""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from dataset_files import Written, write_dataset
from predictor_cases import DIMS, HORIZON, replay

from browser import SCHEMES, browser
from edgewright.evaluate import Evaluation, FrameChoice, evaluate, open_dataset
from edgewright.evaluate.curves import Line, curves
from edgewright.evaluate.page import page, write_page
from edgewright.report.charts import short
from html_pages import Reader


def read(html: str) -> tuple[str, list[str]]:
    """Check that a page is well formed and loads nothing; returns its text and its images."""
    reader = Reader(pictures=True)
    reader.feed(html)
    assert reader.loads == []
    assert reader.open == []
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))
    return " ".join(" ".join(reader.text).split()), reader.images


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_dataset(tmp_path_factory.mktemp("page") / "set <b>", "v2.1", (16, 9), 3)


def evaluation(written: Written, count: int, thresholds: dict[str, float] | None = None) -> Evaluation:
    predictors = [
        replay(written, lambda e, s, n, k=k: 0.05 * (k + 1) * n[:, :DIMS], f"policy <{k}>")[0] for k in range(count)
    ]
    with open_dataset(written.folder) as dataset:
        return evaluate(dataset, predictors, FrameChoice(every=3), thresholds=thresholds)


@pytest.mark.parametrize("count", [1, 2])
def test_everything_is_on_it(written: Written, count: int) -> None:
    found = evaluation(written, count, {"mae": 1e-4})
    html = page(found)
    text, images = read(html)
    assert "set <b> (v2.1, drawn, 10 frames a second)" in text
    assert "9 frames of 2 episodes, seed 0" in text
    for policy in found.policies:
        assert policy["name"] in text
        for key in ("mae", "rmse", "max_error", "run_mae", "jerk", "jump", "gripper_agreement"):
            assert short(policy["figures"][key]) in text, key
        for one in policy["dimensions"]:
            assert f"{short(one['mae'])} {short(one['rmse'])} {short(one['max'])}" in text
    for reason in found.verdict.reasons:
        assert reason in text
    assert ("Side by side" in text) == (count == 2)
    if found.comparison is not None:
        increase = found.comparison["mae_increase"]
        assert f"{short(increase['mean'])} [{short(increase['low'])}, {short(increase['high'])}]" in text
    assert html.count("<svg") == 1 + count + DIMS  # along the chunk, by dimension, an episode
    assert html.count("<polyline") == count + DIMS * (1 + 6 * count)
    assert len(images) == 6 * 2


def test_images_are_those_of_the_frames(written: Written) -> None:
    found = evaluation(written, 1)
    _, images = read(page(found))
    pictures = [image for frame in found.shown for image in frame.images.values()]
    assert len(images) == len(pictures)
    for uri, picture in zip(images, pictures, strict=True):
        head, _, data = uri.partition(",")
        assert head == "data:image/jpeg;base64"
        decoded = np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(data))), np.float64)
        assert decoded.shape == picture.shape
        assert np.corrcoef(decoded.reshape(-1), picture.reshape(-1))[0, 1] > 0.4  # noise survives JPEG badly


def test_without_cameras_and_figures(tmp_path: Path) -> None:
    written = write_dataset(tmp_path / "set", "v3.0", (1, 1), 3)
    still, _ = replay(written, lambda *_: np.zeros((HORIZON, DIMS)), cameras=(), required=())
    with open_dataset(written.folder) as dataset:
        found = evaluate(dataset, [still], FrameChoice([0]))
    write_page(tmp_path / "new" / "page.html", found)
    text, images = read((tmp_path / "new" / "page.html").read_text(encoding="utf-8"))
    assert images == []
    assert "no images" in text
    assert "dimensions that never change" in text


@pytest.mark.parametrize("width", [400, 1400])
def test_in_a_browser(written: Written, tmp_path: Path, width: int) -> None:
    path = tmp_path / "page.html"
    write_page(path, evaluation(written, 2))
    with browser() as tab:
        for scheme in SCHEMES:
            tab.open(path, width, scheme)
            assert tab.faults() == []


def points(chart: dict[str, list[dict[str, str]]], number: int) -> list[tuple[float, float]]:
    pairs = chart["lines"][number]["points"].split()
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in pairs)]


def test_curves_are_where_their_values_are() -> None:
    chart = curves(
        [Line("recorded", "a", 0, np.array([0.0, 1.0, 4.0])), Line("first", "b", 2, np.array([2.0, np.nan]))]
    )
    assert chart is not None
    first, second = points(chart, 0), points(chart, 1)
    assert first[0] == (chart["left"], chart["height"] - 22)
    assert first[2][1] == 10
    assert first[1][1] == pytest.approx(first[0][1] - (first[0][1] - 10) / 4, abs=0.06)
    assert first[1][0] - first[0][0] == pytest.approx((chart["right"] - chart["left"]) / 3, abs=0.06)
    assert second == [(first[2][0], pytest.approx((first[0][1] + 10) / 2, abs=0.06))]
    assert [tick["text"] for tick in chart["ticks"]] == ["0", "2", "4"]
    assert [label["text"] for label in chart["labels"]] == ["0", "1", "3"]


def test_curves_of_little_and_of_much() -> None:
    assert curves([]) is None
    assert curves([Line("first", "a", 0, np.array([np.nan]))]) is None
    flat = curves([Line("first", "a", 0, np.full(4, 3.0))], from_zero=True)
    assert flat is not None
    assert {y for _, y in points(flat, 0)} == {10.0}
    one = curves([Line("first", "a", 5, np.array([-2.0]))])
    assert one is not None
    assert len(points(one, 0)) == 1
    long = curves([Line("first", "a", 0, np.arange(100_000.0))])
    assert long is not None
    assert 600 < len(points(long, 0)) <= 1200
