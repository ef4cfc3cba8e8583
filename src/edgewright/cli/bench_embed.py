"""`edgewright bench embed`: raw embedding files of a bundle whose table stands outside its graph."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from edgewright.cli._load import load
from edgewright.cli._output import fields, note, print_json
from edgewright.cli._parser import token_ids
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.runtime.encoding import EmbeddingFile
    from edgewright.runtime.llm import LLM

NAME = "bench embed"
HELP = "Write a prompt's embeddings, and the table of all tokens, as raw files; prints the arguments that name them."
_PLACE = "PATH[,TYPE[,SCALE,OFFSET]]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", metavar="BUNDLE", help="made by deploy --embeddings outside")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt as text")
    prompt.add_argument("--ids", type=token_ids, metavar="N,N", help="the prompt as token ids")
    parser.add_argument(
        "-o",
        "--output",
        metavar=_PLACE,
        help="the prompt's embeddings; TYPE is int8, uint8, int16 or uint16, without it float32; without SCALE,OFFSET "
        "they span the table's values",
    )
    parser.add_argument("--table", metavar=_PLACE, help="the embeddings of all tokens, in their order")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(threads=None)


def run(args: argparse.Namespace) -> int:
    """Write the files."""
    from edgewright.runtime.rawtable import write_raw

    asked = args.prompt is not None or args.ids is not None
    if asked != (args.output is not None) or not (asked or args.table):
        raise UsageError("Give --prompt or --ids together with -o, or --table, or all: there is nothing else to write.")
    texts = {"input": args.output, "table": args.table}
    places = {what: _Place(text) for what, text in texts.items() if text is not None}
    _check_paths(list(places.values()), overwrite=args.overwrite)
    llm = load(args)
    rows = llm.embed(llm.prompt_ids(args.prompt if args.ids is None else args.ids)) if asked else None
    if rows is not None and not len(rows):
        raise UsageError("The prompt is empty: give at least one token.")
    spans = _spans(llm) if any(place.open for place in places.values()) else (0.0, 0.0)
    found: dict[str, Any] = {}
    for what, place in places.items():
        file = place.file(*spans)
        blocks = iter([rows]) if what == "input" and rows is not None else llm.embedding_blocks()
        saturated = write_raw(file.path, file.encoding, blocks)
        found[what] = _described(file, llm, saturated)
        if saturated:
            note(f"note: {saturated:,} values of {file.path} were cut to the range of its codes", quiet=args.quiet)
    if args.json:
        print_json(found)
    else:
        sys.stdout.write(fields((what, entry["argument"]) for what, entry in found.items()) + "\n")
    return 0


class _Place:
    """A file to be written, whose encoding may be open."""

    def __init__(self, text: str) -> None:
        from edgewright.runtime.encoding import INTEGERS, EmbeddingFile

        path, *rest = text.split(",")
        if len(rest) == 1 and rest[0] not in INTEGERS:
            raise UsageError(f"Invalid datatype {rest[0]!r} in {text!r}: choose from {', '.join(INTEGERS)}.")
        self.dtype = next((dtype for dtype in INTEGERS if rest == [dtype]), None)
        self.given = EmbeddingFile.parse(path if self.open else text)
        self.path = self.given.path

    @property
    def open(self) -> bool:
        """Whether scale and offset are to be found."""
        return self.dtype is not None

    def file(self, low: float, high: float) -> EmbeddingFile:
        """Return what is to be written; values go from `low` to `high`."""
        from edgewright.runtime.encoding import EmbeddingFile, Encoding

        if self.dtype is None:
            return self.given
        return EmbeddingFile(self.path, Encoding.of_range(self.dtype, low, high), stated=True)


def _check_paths(places: list[_Place], *, overwrite: bool) -> None:
    """Refuse what can't be written before anything is loaded."""
    from edgewright.errors import OutputError

    paths = [place.path for place in places]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError(f"The input and the table can't both be written to {paths[0]}: give two names.")
    for path in paths:
        if path.is_dir() or not path.parent.is_dir():
            raise OutputError(f"{path} can't be written: name a file in a folder that exists.")
        if path.exists() and not overwrite:
            raise OutputError(f"{path} exists already: choose another name, or pass --overwrite.")


def _spans(llm: LLM) -> tuple[float, float]:
    """Return the smallest and the largest value of the table, so that no generated token's row is cut either."""
    low = high = 0.0
    for block in llm.embedding_blocks():
        low, high = min(low, float(block.min())), max(high, float(block.max()))
    return low, high


def _described(file: EmbeddingFile, llm: LLM, saturated: int) -> dict[str, Any]:
    size, width = file.path.stat().st_size, llm.embedding_width or 0
    encoding = file.encoding
    return {
        "argument": str(file),
        "path": str(file.path),
        "dtype": encoding.dtype,
        "scale": encoding.scale,
        "offset": encoding.offset,
        "rows": size // (width * encoding.itemsize),
        "hidden": width,
        "bytes": size,
        "saturated": saturated,
    }
