"""`edgewright genie-config`: a folder that Qualcomm's genie-t2t-run starts from, but for the context binaries."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.cli._load import warn_failed
from edgewright.cli._output import fields, note, print_json
from edgewright.cli._parser import positive_int, seed, token_ids

if TYPE_CHECKING:
    from edgewright.bundle import Manifest
    from edgewright.genie.soc import Soc
    from edgewright.genie.writing import Model, Running, Table
    from edgewright.runtime.embedding import EmbeddingTable

NAME = "genie-config"
HELP = "Write a Genie folder for a bundle's model and a chip: dialog, HTP extensions, tokenizer; not the binaries."
_NEEDED = (("BUNDLE", "bundle"), ("--for", "soc"), ("-o", "output"))
_KINDS = {
    "dialog": "dialog", "embedding": "embedding", "engine": "engine", "sampler": "sampler", "node": "node",
    "profile": "profile configuration", "extensions": "back end extension",
}  # fmt: skip
_TYPES = ("float32", "int8", "uint8", "int16", "uint16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("bundle", nargs="?", metavar="BUNDLE", help="the folder that deploy wrote")
    parser.add_argument("--for", dest="soc", metavar="CHIP", help="sa8255, 8-gen-3, x-elite ...")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="where to write")
    parser.add_argument("--check", nargs="+", metavar="FILE", help="instead: tell whether Genie takes these files")
    parser.add_argument("--force", action="store_true", help="write into a Genie folder that exists")
    parser.add_argument(
        "--ctx-bins", nargs="+", type=_filled, metavar="FILE", help="names of the context binaries, in their order"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    group = parser.add_argument_group("the model")
    group.add_argument("--model-config", metavar="FILE", help="the checkpoint's config.json: how positions are turned")
    group.add_argument("--rope-theta", type=_above_zero, metavar="BASE", help="instead, for plain rotation")
    group.add_argument("--context", type=positive_int, metavar="N", help="of the context (default: the bundle's)")
    group.add_argument("--bos", type=seed, metavar="ID", help="the token that begins a text (default: the bundle's)")
    group.add_argument("--eos", type=token_ids, metavar="ID,ID", help="tokens that end one (default: the bundle's)")
    group.add_argument(
        "--table", choices=_TYPES, metavar="TYPE", help="write the table outside the graph as a raw file, too"
    )
    group = parser.add_argument_group("the chip")
    group.add_argument("--soc-model", type=positive_int, metavar="N", help="its number, where the name isn't known")
    group.add_argument("--dsp-arch", metavar="vNN", help="its DSP's architecture")
    group.add_argument("--device-id", type=seed, metavar="N", help="which accelerator of several")
    group.add_argument("--perf-profile", type=_filled, default="burst", metavar="NAME", help="(default: burst)")
    group.add_argument("--threads", type=positive_int, default=3, metavar="N", help="(default: 3)")
    group.add_argument(
        "--cpu-mask", type=_filled, default="0xe0", metavar="MASK", help="cores of the host's work (default: 0xe0)"
    )
    group.add_argument("--no-poll", action="store_true", help="wait for the accelerator without a busy core")
    group.add_argument("--seed", type=seed, default=42, metavar="N", help="of the sampler (default: 42)")


def _filled(text: str) -> str:
    if not text or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!a} is empty, or holds what can't be printed")
    return text


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def run(args: argparse.Namespace) -> int:
    """Write the folder, or check files."""
    from edgewright.bundle import read_manifest
    from edgewright.cli._genie_bundle import model_of
    from edgewright.errors import UsageError
    from edgewright.genie.soc import soc_of
    from edgewright.genie.writing import Running
    from edgewright.runtime.embedding import embedding_of

    missing = [name for name, value in _NEEDED if getattr(args, value) is None]
    if args.check:
        return _check(args, given=[name for name, _ in _NEEDED if name not in missing])
    if missing:
        raise UsageError(f"Give {', '.join(missing)}, too; or --check with Genie's files.")
    soc = soc_of(args.soc, soc_model=args.soc_model, dsp_arch=args.dsp_arch)
    folder = Path(args.bundle)
    manifest = read_manifest(folder)
    warn_failed(manifest)
    table = embedding_of(folder, manifest) if "llm" in manifest.stages else None
    if args.table is not None and table is None:
        raise UsageError("The bundle's table is in its graph, so there is no --table to write: leave it out.")
    if args.seed >= 1 << 31:
        raise UsageError(f"Genie keeps the seed as int32, so {args.seed} can't be: give one below 2147483648.")
    model = model_of(args, manifest, table)
    binaries = args.ctx_bins or [f"{manifest.source.get('name') or folder.name}_part_1_of_1.bin"]
    running = Running(binaries, args.threads, args.cpu_mask, not args.no_poll, soc.mmap, args.seed)
    files = _write(args, manifest, model, running, soc, table)
    _tell(args, soc, files, binaries, outside=table is not None)
    return 0


def _check(args: argparse.Namespace, given: list[str]) -> int:
    """Print a line for each file that the library takes; raises GenieError for the first that it doesn't."""
    from edgewright.errors import UsageError
    from edgewright.genie.checks import kind_of, notes, require
    from edgewright.genie.document import parse_file

    if given:
        raise UsageError(f"--check writes nothing, so {', '.join(given)} can't be given with it: leave one out.")
    found = []
    for name in args.check:
        document = parse_file(Path(name))
        kind = kind_of(document)
        require(document, kind)
        found.append({"file": name, "kind": kind, "notes": notes(document, kind)})
        for text in found[-1]["notes"]:
            note(f"note: {text}", quiet=args.quiet)
        if not args.json:
            sys.stdout.write(f"{name}: Genie takes this {_KINDS[kind]}\n")
    if args.json:
        print_json({"files": found})
    return 0


def _write(
    args: argparse.Namespace,
    manifest: Manifest,
    model: Model,
    running: Running,
    soc: Soc,
    table: EmbeddingTable | None,
) -> list[str]:
    """Write the folder's files and return their names; a folder that is there keeps its others, the binaries."""
    from edgewright.files import new_folder, os_errors
    from edgewright.genie.writing import CONFIG

    output = Path(args.output)
    if not args.force or not (output / CONFIG).is_file():
        with new_folder(output, replace=args.force, mark=CONFIG, kind="Genie folder") as folder:
            return _fill(folder, args, manifest, model, running, soc, table)
    with os_errors(output.name), tempfile.TemporaryDirectory(prefix=".partial-", dir=output) as work:
        names = _fill(Path(work), args, manifest, model, running, soc, table)
        for name in names:
            (Path(work) / name).replace(output / name)
    return names


def _fill(
    folder: Path,
    args: argparse.Namespace,
    manifest: Manifest,
    model: Model,
    running: Running,
    soc: Soc,
    table: EmbeddingTable | None,
) -> list[str]:
    """Write the files into an empty folder and return their names."""
    from edgewright.cli._genie_bundle import tokenizer_of
    from edgewright.errors import UsageError
    from edgewright.genie.config import write_config
    from edgewright.genie.soc import extensions_of
    from edgewright.genie.starting import stumbles
    from edgewright.genie.writing import CONFIG, EXTENSIONS, TOKENIZER, dialog_config

    if table is not None and args.table is not None:
        model = replace(model, table=_table(folder, args.table, table))
    data = dialog_config(model, running)
    write_config(folder / CONFIG, "dialog", data)
    for problem in stumbles(data["dialog"], ("dialog",)):
        raise UsageError(f"Genie would fail when it makes the dialog: {problem}.")
    extensions = extensions_of(soc, device_id=args.device_id, perf_profile=args.perf_profile)
    write_config(folder / EXTENSIONS, "extensions", extensions)
    shutil.copyfile(tokenizer_of(Path(args.bundle), manifest), folder / TOKENIZER)
    return sorted(path.name for path in folder.iterdir())


def _tell(args: argparse.Namespace, soc: Soc, files: list[str], binaries: list[str], *, outside: bool) -> None:
    if outside and args.table is None:
        text = "embeddings come from the program's callback (genie-t2t-run -t); --table TYPE writes the table here"
        note(f"note: {text}", quiet=args.quiet)
    named = "" if args.ctx_bins else ", named after the model"
    note(f"note: the context binaries ({', '.join(binaries)}{named}) are not made here: add them", quiet=args.quiet)
    chip = {"name": soc.name, "soc_model": soc.soc_model, "dsp_arch": soc.dsp_arch}
    if args.json:
        print_json({"folder": str(args.output), "chip": chip, "files": files, "binaries": binaries})
        return
    rows = [
        ("folder", args.output),
        ("chip", f"{soc.name} (soc_model {soc.soc_model}, {soc.dsp_arch})"),
        ("files", ", ".join(files)),
        ("binaries", ", ".join(binaries)),
    ]
    sys.stdout.write(fields(rows) + "\n")


def _table(folder: Path, dtype: str, table: EmbeddingTable) -> Table:
    """Write the table as a raw file and return what the dialog says of it."""
    from edgewright.cli._genie_bundle import rows_of, span_of
    from edgewright.genie.writing import TABLE, Table
    from edgewright.runtime.encoding import Encoding
    from edgewright.runtime.rawtable import write_raw

    encoding = Encoding() if dtype == "float32" else Encoding.of_range(dtype, *span_of(table))  # type: ignore[arg-type]
    write_raw(folder / TABLE, encoding, rows_of(table))
    return Table(table.hidden, encoding.dtype, encoding.scale, encoding.offset)
