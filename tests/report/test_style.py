"""Colors, names and drawings that hold for every figure."""

from __future__ import annotations

import re
from itertools import combinations

import matplotlib as mpl
import numpy as np
import pytest

from edgewright.errors import MissingExtraError
from edgewright.report.style import (
    DARK_PALETTE,
    PALETTE,
    blank,
    color,
    dashes,
    drawing,
    inline_svg,
    label,
    png,
    svg,
    text_points,
)

#: Machado, Oliveira and Fernandes 2009, severity 1: what is seen without the long, the middle, the short cones.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(text: str) -> np.ndarray:
    values = np.array([int(text[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(values: np.ndarray) -> np.ndarray:
    """Linear sRGB as CIE L*a*b*, in which a distance of 2.3 is just noticed."""
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.clip(matrix @ values, 0, None) / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    """The contrast of two colors as WCAG 2 defines it."""
    light = sorted(float(np.dot([0.2126, 0.7152, 0.0722], linear(text))) for text in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("palette", [PALETTE, DARK_PALETTE])
def test_the_first_six_colors_stay_apart(palette: tuple[str, ...], kind: str) -> None:
    seen = [lab(np.asarray(BLINDNESS[kind]) @ linear(one)) for one in palette[:6]]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 10


def test_colors_are_seen_on_their_paper() -> None:
    assert min(contrast(one, "#ffffff") for one in PALETTE) > 2
    assert min(contrast(one, "#1a2129") for one in DARK_PALETTE) > 4


def test_every_dialog_looks_different() -> None:
    looks = {(color(index), str(dashes(index))) for index in range(32)}
    assert len(looks) == 32
    assert len(PALETTE) == len(DARK_PALETTE)


def test_names_are_shortened_in_the_middle() -> None:
    assert label("chat") == "chat"
    assert label("a" * 20 + "bcd" + "e" * 20) == "a" * 10 + "…" + "e" * 10
    assert label("tab\tbell\x07") == "tab?bell?"
    assert label("") == "?"
    assert text_points("你好") > text_points("ab")


def plot(name: str) -> tuple[bytes, bytes, str]:
    with drawing("plot"):
        figure = blank("wide", 100, note=name)
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=color(0))
        axes.annotate(name, (0.1, 0.1))
        axes.scatter([0], [0], color=color(1))
        return png(figure), svg(figure), inline_svg(figure, "here-", "A plot")


def test_drawings_come_out_the_same_and_leave_no_settings() -> None:
    before = dict(mpl.rcParams)
    first, second = plot("one"), plot("one")
    assert first == second
    assert dict(mpl.rcParams) == before
    assert first[0].startswith(b"\x89PNG")
    for text in (first[1].decode(), first[2]):
        assert "<dc:date>" not in text
        assert "matplotlib.org" not in text


def test_inline_drawings_have_the_colors_of_the_page_and_ids_of_their_own() -> None:
    text = plot('<b>$x$ & "y" fill: #0072b3')[2]
    assert text.startswith('<svg viewBox="0 0 720 100" role="img" aria-label="A plot">')
    assert "stroke: var(--dialog0)" in text
    assert "fill: var(--dialog1)" in text
    assert "var(--soft)" in text
    assert not re.findall(r"#(?:0072b2|e69f00|1c2431|5b6676)", text)
    ids = re.findall(r' id="([^"]*)"', text)
    assert ids
    assert all(one.startswith("here-") for one in ids)
    assert len(set(ids)) == len(ids)
    used = re.findall(r'xlink:href="#([^"]*)"', text) + re.findall(r"url\(#([^)]*)\)", text)
    assert used
    assert set(used) <= set(ids)
    assert "&lt;b&gt;$x$ &amp; " in text
    assert "<style" not in text


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def refusing(name: str, *rest: object, **more: object) -> object:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refusing)
    with pytest.raises(MissingExtraError, match=r"pip install 'edgewright\[report\]'"), drawing("plot"):
        raise AssertionError("drawn without matplotlib")
