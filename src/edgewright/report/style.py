"""How figures look: sizes, colors that survive color blindness, and files that come out the same every time."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from edgewright.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A figure is drawn for a desktop or for a phone; text has the same size in both.
Size = Literal["wide", "narrow"]
#: Width in points (1/72 inch); a page shows a point as about a pixel.
WIDTHS: dict[Size, float] = {"wide": 720.0, "narrow": 300.0}
FONT_POINTS = 9.0

INK, SOFT, LINE, IDLE, STALLED, PAPER = "#1c2431", "#5b6676", "#d8dee7", "#dde3ea", "#8d9aa9", "#fffffe"
#: What a page sets these colors to, so that one drawing serves light and dark.
VARIABLES = {INK: "--ink", SOFT: "--soft", LINE: "--line", IDLE: "--idle", STALLED: "--stalled", PAPER: "--paper"}

#: The first six are Okabe and Ito's, which stay apart for every kind of color blindness; see also `dashes`.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#6a51a3", "#8c6d31")
#: The same on dark paper.
DARK_PALETTE = ("#3b9ae1", "#f0b429", "#1fb58a", "#dd92bb", "#ec7a3c", "#8ccdf5", "#a08fd8", "#c2a25c")
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
#: How much ink a phase gets of its dialog's color.
PHASES = {"prefill": 1.0, "vision": 1.0, "prefix": 0.75, "decode": 0.5, "denoise": 0.4}
OTHER_PHASE = 0.25

_LONGEST_NAME = 22
#: Names that a caption spells.
_MOST_NAMES = 6
_SVG_FONT = re.compile(r"font-family: [^;\"]*")
_COORDINATES = re.compile(r' (?:d|x|y|points|transform|width|height)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")
#: Fonts with Chinese, Japanese and Korean signs, for names written so.
_WIDE_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "Microsoft YaHei", "PingFang SC")


def color(index: int) -> str:
    """Return the color of dialog `index`, the same in every figure and page."""
    return PALETTE[index % len(PALETTE)]


def dashes(index: int) -> Any:
    """Return the line style of dialog `index`: past the last color the first comes again, dashed."""
    return _DASHES[index // len(PALETTE) % len(_DASHES)]


def label(name: str) -> str:
    """Return a name as figures show it: no control signs, shortened in the middle."""
    plain = "".join(sign if sign.isprintable() else "?" for sign in name) or "?"
    if len(plain) <= _LONGEST_NAME:
        return plain
    half = (_LONGEST_NAME - 1) // 2
    return f"{plain[:half]}…{plain[-half:]}"


def text_points(text: str, points: float = FONT_POINTS) -> float:
    """Return about how wide a text is."""
    return sum(1.0 if ord(sign) > 0x2E80 else 0.62 for sign in text) * points


@contextmanager
def drawing(salt: str) -> Iterator[None]:
    """Set what matplotlib knows only as global settings, for the time of a drawing.

    Raises MissingExtraError without matplotlib.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise MissingExtraError(
            "Figures need the package matplotlib, which is not installed: pip install 'edgewright[report]'."
        ) from None
    settings: dict[Any, Any] = {
        "svg.hashsalt": salt,
        "svg.fonttype": "none",
        "font.family": ["DejaVu Sans", *_wide_fonts()],
        "font.size": FONT_POINTS,
        "text.parse_math": False,
        "axes.edgecolor": SOFT,
        "axes.labelcolor": SOFT,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": FONT_POINTS,
        "axes.titlecolor": INK,
        "axes.titlelocation": "left",
        "axes.facecolor": "none",
        "axes.axisbelow": True,
        "axes.formatter.useoffset": False,
        "grid.color": LINE,
        "grid.linewidth": 0.6,
        "text.color": INK,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "legend.frameon": False,
        "legend.handlelength": 1.4,
        "legend.columnspacing": 1.2,
        "legend.borderaxespad": 0.2,
        "path.simplify": True,
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "agg", **settings}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _wide_fonts() -> list[str]:
    from matplotlib.font_manager import fontManager

    known = {font.name for font in fontManager.ttflist}
    return [name for name in _WIDE_FONTS if name in known]


def blank(size: Size, height: float, *, note: str = "") -> Figure:
    """Return an empty figure `height` points high; `note` stands in its lower right corner."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTHS[size] / 72, height / 72), dpi=72, layout="constrained")
    figure.get_layout_engine().set(w_pad=6 / 72, h_pad=4 / 72)  # type: ignore[union-attr, call-arg]
    if note:
        figure.supxlabel(note, x=0.995, ha="right", fontsize=FONT_POINTS - 1, color=SOFT)
    return figure


def legend(figure: Figure, entries: Sequence[tuple[Any, str]], size: Size) -> None:
    """Write a legend over the axes, in as many columns as fit."""
    if not entries:
        return
    columns = _legend_columns([text for _, text in entries], size)
    figure.legend(
        [handle for handle, _ in entries],
        [text for _, text in entries],
        loc="outside upper left",
        ncols=columns,
    )


def legend_points(texts: Sequence[str], size: Size) -> float:
    """Return how high a legend of such texts is."""
    return -(-len(texts) // _legend_columns(texts, size)) * 1.5 * FONT_POINTS if texts else 0.0


def _legend_columns(texts: Sequence[str], size: Size) -> int:
    widest = max(map(text_points, texts)) + 3.2 * FONT_POINTS
    return max(1, min(len(texts), int((WIDTHS[size] - 12) // widest)))


def counts(numbers: Sequence[tuple[str, int]]) -> str:
    """Spell a number of each name, or of how many names where they are many."""
    if len(numbers) > _MOST_NAMES:
        return f"{sum(number for _, number in numbers)} of {len(numbers)} dialogs"
    return ", ".join(f"{label(name)} {number}" for name, number in numbers)


def lane_axis(axes: Axes, names: Sequence[str]) -> None:
    """Make the vertical axis one of named lanes, the first on top."""
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.set_yticks(range(len(names)), [label(name) for name in names])
    axes.tick_params(axis="y", length=0)
    for text in axes.get_yticklabels():
        text.set_color(INK)
    axes.spines["left"].set_visible(False)


def png(figure: Figure) -> bytes:
    """Return the figure as PNG on white, 144 dots an inch, with no date or version in it."""
    return _saved(figure, format="png", dpi=144, facecolor="white", metadata={"Software": None})


def svg(figure: Figure) -> bytes:
    """Return the figure as a file of SVG on white, with no date or version in it."""
    text = _saved(figure, format="svg", facecolor="white", metadata={"Date": None, "Creator": None}).decode()
    return _SVG_FONT.sub("font-family: 'DejaVu Sans', Verdana, sans-serif", text).encode()


def inline_svg(figure: Figure, prefix: str, title: str) -> str:
    """Return the figure as SVG for a page: its colors are the page's variables, its ids begin with `prefix`."""
    text = _saved(figure, format="svg", transparent=True, metadata={"Date": None, "Creator": None}).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)  # would hold for the whole page
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}", text)
    text = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _variable, text)
    # The page's font is as good as the one that was measured, which is a wide one.
    text = _SVG_FONT.sub("", text)
    text = _COORDINATES.sub(lambda found: _DECIMALS.sub(r"\1", found[0]).replace("\n", " "), text)
    return re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{title}">', text, count=1)


def _variable(found: re.Match[str]) -> str:
    """Return a color of ours as a variable of the page."""
    value = found[2]
    name = VARIABLES.get(value) or (f"--dialog{PALETTE.index(value)}" if value in PALETTE else None)
    return found[0] if name is None else f"{found[1]}: var({name})"


def _saved(figure: Figure, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, **options)
    return file.getvalue()
