"""The text that ships for calibration: mixed from its beginning on, and apart from what quality is measured on."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data"
SHIPPED = resources.files("edgewright.calibration") / "texts"
TEXT = (SHIPPED / "english.txt").read_bytes().decode("utf-8")
SOURCES = (SHIPPED / "SOURCES.md").read_text(encoding="utf-8")
#: A phrase of each work.
WORKS = {
    "Pride and Prejudice": "Mr. Bennet",
    "Opticks": "Refraction",
    "Tom Sawyer": "Aunt Polly",
    "Moby-Dick": "Leviathan",
    "Heart of Darkness": "cruising yawl",
    "The Devil's Dictionary": "ABSURDITY, n.",
    "Gettysburg Address": "Four score and seven years ago",
    "Julius Caesar": "Friends, Romans, countrymen",
    "Hamlet": "A little more than kin",
    "Exodus": "shittim wood",
    "Psalms": "the chaff which the wind driveth away",
    "Luke": "a certain Samaritan",
}


def phrases(text: str, words: int = 8) -> set[tuple[str, ...]]:
    """Return all runs of `words` words."""
    found = re.findall(r"[a-z']+", text.lower())
    return set(zip(*(found[i:] for i in range(words)), strict=False))


@pytest.mark.parametrize(("work", "phrase"), WORKS.items())
def test_every_work_is_there_and_named(work: str, phrase: str) -> None:
    assert phrase in TEXT
    assert work in SOURCES


def test_its_size_and_characters() -> None:
    assert 250_000 < len(TEXT.encode()) < 350_000
    assert not re.search(r"(?i)gutenberg|http|www\.|copyright|licen[sc]e|\ufffd|\r|\t|  ", TEXT)
    assert not re.search(r"\n{3,}", TEXT)


def test_its_beginning_is_mixed() -> None:
    beginning = TEXT[:80_000]
    assert sum(beginning.count(phrase) > 0 for phrase in WORKS.values()) >= 6


@pytest.mark.parametrize("name", ["heldout.txt", "text.txt"])
def test_nothing_of_it_is_in_the_texts_that_quality_is_measured_on(name: str) -> None:
    other = phrases((DATA / name).read_text(encoding="utf-8"))
    assert len(other) > 1000
    assert not phrases(TEXT) & other


def test_the_held_out_text_that_ships_is_the_beginning_of_the_whole_one() -> None:
    short = (SHIPPED / "heldout.txt").read_text(encoding="utf-8")
    whole = (DATA / "heldout.txt").read_text(encoding="utf-8")
    assert 55_000 < len(short.encode()) < 61_000
    assert whole.startswith(f"{short.rstrip()}\n\n")
    for work in ("Emma", "Persuasion", "Opticks", "Brother Jacob", "Macbeth", "Devil's Dictionary", "Ecclesiastes"):
        assert work in SOURCES
