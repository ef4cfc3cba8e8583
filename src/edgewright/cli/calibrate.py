"""`edgewright calibrate`: calibration data for a model, as safetensors shards with a report of coverage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.cli._build import SOURCE_HELP, add_output
from edgewright.cli._output import count, fields, folder_bytes, note, print_json, size, table
from edgewright.cli._parser import positive_int
from edgewright.cli._policy import add_policy
from edgewright.cli._policy_source import policy_options
from edgewright.errors import UsageError

if TYPE_CHECKING:
    from edgewright.calibration import Shards
    from edgewright.checkpoint.policy import PolicyOptions

NAME = "calibrate"
HELP = "Make calibration data for a model: token ids, images or observations as shards, and what they cover."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    parser.add_argument(
        "--data",
        default="english",
        metavar="SPEC",
        help="english (the text that comes with edgewright), a .txt or .jsonl file or a folder of them, or a folder of "
        "images with texts, of robot observations, or of saved shards (default: english)",
    )
    parser.add_argument(
        "--sequences", type=positive_int, metavar="N", help="most samples to take (default: 64 of text, else all)"
    )
    parser.add_argument(
        "--length", type=positive_int, metavar="TOKENS", help="most tokens of a sequence (default: 512 of text)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides what is taken (default: 0)")
    add_output(parser, "FOLDER")
    add_policy(parser)


def run(args: argparse.Namespace) -> int:
    """Make calibration data."""
    shards = _make(args)
    if args.json:
        print_json({"path": args.output, "bytes": folder_bytes(shards.folder), "kind": shards.kind, **_report(shards)})
        return 0
    if not args.quiet:
        for text in shards.record["notes"]:
            note(f"note: {text}")
    sys.stdout.write("\n".join(_lines(shards)) + "\n")
    return 0


def _make(args: argparse.Namespace) -> Shards:
    from edgewright.checkpoint.policy import is_policy

    policy = is_policy(args.source)
    options = policy_options(args, policy=policy)
    return _make_of_policy(args, options) if policy else _make_of_language_model(args)


def _make_of_policy(args: argparse.Namespace, options: PolicyOptions | None) -> Shards:
    """Make a set of observations that fit a policy; their texts stay texts, which the state may become part of."""
    from edgewright.calibration import write_shards
    from edgewright.checkpoint.policy import open_policy
    from edgewright.quantizer.policy_observations import fitting, observation_samples

    if args.length is not None:
        raise UsageError("A robot policy's prompts are as long as they are, so --length has no meaning: leave it out.")
    checkpoint = open_policy(args.source, options)
    samples = observation_samples(args.data, args.sequences, args.seed)
    return write_shards(Path(args.output), fitting(checkpoint, samples), lambda: samples.record, force=args.force)


def _make_of_language_model(args: argparse.Namespace) -> Shards:
    from edgewright.calibration import load_samples, write_shards
    from edgewright.calibration.images import is_image_text, read_image_text
    from edgewright.calibration.model import text_side
    from edgewright.calibration.observations import is_observations, read_observations
    from edgewright.calibration.shards import is_shards
    from edgewright.checkpoint import open_checkpoint
    from edgewright.models import config_of

    checkpoint = open_checkpoint(args.source)
    side = text_side(checkpoint)
    chosen = {"sequences": args.sequences, "length": args.length, "seed": args.seed}
    data, output = Path(args.data), Path(args.output)
    for is_kind, read in ((is_image_text, read_image_text), (is_observations, read_observations)):
        if args.data != "english" and not is_shards(data) and is_kind(data):
            samples = read(data, side.tokenizer, **chosen)
            return write_shards(output, samples, lambda: samples.record, force=args.force)  # noqa: B023 - used at once
    _, config = config_of(checkpoint.config)
    rows = load_samples(
        args.data,
        side.tokenizer,
        template=side.template,
        **chosen,
        vocab_size=config.vocab_size,
        max_context=config.max_position_embeddings,
    )
    return write_shards(output, rows.rows, rows.record, force=args.force)


def _report(shards: Shards) -> dict[str, Any]:
    return {"shards": len(shards.files), "samples": shards.count, "record": dict(shards.record)}


def _lines(shards: Shards) -> list[str]:
    record = shards.record
    sources = record["sources"]
    names = ", ".join(source["name"] for source in sources[:3])
    more = f" and {len(sources) - 3} more" if len(sources) > 3 else ""
    head = [
        ("data", f"{record['kind']} from {names}{more}"),
        ("written", f"{shards.folder}: {size(folder_bytes(shards.folder))} in {len(shards.files)} {_shards(shards)}"),
    ]
    if shards.kind == "tokens":
        return [fields([*head, *_token_fields(record)])]
    head += [
        ("samples", f"{record['samples']} of {record['available']}, seed {record['seed']}"),
        ("dropped", f"{record['duplicates_dropped']} duplicates"),
    ]
    return [fields(head), "", table(("field", "kind", "samples", "shape", "covers"), _field_rows(record["coverage"]))]


def _shards(shards: Shards) -> str:
    return "shard" if len(shards.files) == 1 else "shards"


def _token_fields(record: Mapping[str, Any]) -> list[tuple[str, object]]:
    coverage, cut = record["coverage"], record["truncated"]
    shares = ", ".join(f"{share:.1%} in the {k} commonest" for k, share in coverage["top_share"].items())
    return [
        ("sequences", f"{record['sequences']} of {record['available']}, seed {record['seed']}"),
        ("tokens", f"{record['tokens']} ({record['shortest']} to {record['longest']} a sequence)"),
        ("truncated", f"{cut['sequences']} sequences to {record['length']} tokens, {cut['tokens']} tokens cut off"),
        ("dropped", f"{record['padding_dropped']} padded positions, {record['duplicates_dropped']} duplicates"),
        (
            "coverage",
            f"{coverage['distinct_tokens']} of {coverage['vocab_size']} token ids ({coverage['vocabulary_share']:.1%})",
        ),
        ("tokens by id", shares),
        ("sha256", record["sha256"]),
    ]


def _field_rows(coverage: Mapping[str, Any]) -> list[tuple[str, str, int, str, str]]:
    rows = []
    for name, field in sorted(coverage.items()):
        if field["kind"] == "tokens":
            shape, covers = "", f"{field['distinct_tokens']} distinct ids in {count(field['tokens'])}"
        else:
            shapes = list(field["shapes"])
            shape = shapes[0] if len(shapes) == 1 else f"{len(shapes)} shapes"
            fixed = f", {len(field['degenerate'])} dimensions never change" if field.get("degenerate") else ""
            flat = f", {field['one_colour']} of one colour" if field.get("one_colour") else ""
            covers = f"{min(field['min']):g} to {max(field['max']):g}{fixed}{flat}"
        rows.append((name, field["kind"], field["samples"], shape, covers))
    return rows
