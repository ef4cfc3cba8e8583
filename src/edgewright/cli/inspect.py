"""`edgewright inspect`: what is in a checkpoint, a bundle, an exported folder or an ONNX graph."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from edgewright.cli._output import fields, print_json, size, table, verdict_lines

NAME = "inspect"
HELP = "Show what is in a checkpoint, a bundle, an exported folder or an ONNX graph."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path", metavar="PATH", help="a model or policy folder, a .gguf file, a bundle, or an .onnx file"
    )
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Inspect."""
    path = Path(args.path)
    if (path / "manifest.json").is_file():
        from edgewright.cli._inspect_bundle import describe_bundle

        data = describe_bundle(path)
    elif path.suffix == ".onnx" and path.is_file():
        from edgewright.cli._inspect_graph import describe_graph

        data = describe_graph(path)
    else:
        from edgewright.cli._inspect_checkpoint import describe_checkpoint

        data = describe_checkpoint(path)
    if not args.tensors:
        data.pop("tensors", None)
    if args.json:
        print_json(data)
    else:
        sys.stdout.write("\n".join(_lines(data)) + "\n")
    return 0


def _lines(data: dict[str, Any]) -> list[str]:
    """Spell a description: single values, then its tables."""
    single = {k: v for k, v in data.items() if not isinstance(v, dict | list)}
    single |= {k: ", ".join(f"{a} {b}" for a, b in data[k].items()) for k in ("model", "versions") if k in data}
    lines = [fields((name.replace("_", " "), _value(name, value)) for name, value in single.items())]
    if "policy" in data:
        lines += _policy(data)
    if "bytes_by_dtype" in data:
        rows = [(name, size(count)) for name, count in data["bytes_by_dtype"].items()]
        lines += ["", table(("dtype", "bytes"), rows)]
    if "operators" in data:
        lines += ["", table(("operator", "nodes"), list(data["operators"].items()))]
    for name, stage in data.get("stages", {}).items():
        lines += ["", f"stage {name}: {stage['dialect']} graph {stage['graph']}, engine {stage['engine'] or 'none'}"]
        lines += _contract(stage["contract"])
    for key in ("inputs", "outputs"):
        if key in data:
            lines += ["", table((key.removesuffix("s"), "dtype", "shape"), _rows(data[key]))]
    if "recipe" in data:
        recipe = data["recipe"]
        lines += ["", f"recipe {recipe['name']}: {recipe['bit_exact']} of {recipe['modules']} modules bit-exact"]
        lines += [f"  {count} x {name}" for name, count in recipe["formats"].items()]
    if "calibration" in data:
        lines += ["", _calibration(data["calibration"])]
    if "vocabulary" in data:
        lines += _vocabulary(data["vocabulary"])
    if "verdict" in data:
        lines += ["", *verdict_lines(data["verdict"])]
    if data.get("notes"):
        lines += ["", "notes", *(f"  {note}" for note in data["notes"])]
    if "files" in data:
        files = [(name, size(entry["bytes"]), entry["sha256"][:16]) for name, entry in data["files"].items()]
        lines += ["", table(("file", "bytes", "sha256"), files)]
    if "tensors" in data:
        tensors = [(t["name"], t["dtype"], _shape(t["shape"]), size(t["bytes"])) for t in data["tensors"]]
        lines += ["", table(("tensor", "dtype", "shape", "bytes"), tensors)]
    return lines


def _calibration(record: dict[str, Any]) -> str:
    """Spell what a quantized checkpoint was calibrated on: counts, truncation, padding."""
    names = ", ".join(str(source["name"]) for source in record["sources"])
    cut = record["truncated"]
    return (
        f"calibrated on {names}: {record['sequences']} sequences, {record['tokens']:,} tokens; {cut['sequences']} "
        f"truncated by {cut['tokens']:,} tokens, {record['padding_dropped']:,} tokens of padding dropped"
    )


def _vocabulary(record: dict[str, Any]) -> list[str]:
    """Spell a reduced vocabulary: how it was chosen, what its tables take, and why tokens stay."""
    coverage = f", {record['coverage']:.2%} of the texts' tokens" if record["coverage"] is not None else ""
    head = f"vocabulary {record['method']}: {record['kept']} of {record['full']} tokens{coverage}"
    sizes = f"tables of {size(record['table_bytes'])} instead of {size(record['full_table_bytes'])}"
    return ["", f"{head}; {sizes}", *(f"  {count} {reason}" for reason, count in record["reasons"].items() if count)]


def _policy(data: dict[str, Any]) -> list[str]:
    """Spell what a policy takes and gives, and the features its graphs were built with."""
    shown = {key: value for key, value in data["policy"].items() if key not in ("kind", "limits")}
    shown |= {f"limit {key}": v for key, v in data["policy"]["limits"].items() if v is not None}
    pairs = [(key.replace("_", " "), _listed(value)) for key, value in shown.items()]
    lines = ["", "policy", *("  " + line for line in fields(pairs).splitlines())]
    if "features" in data:
        words = [f"{k}={'on' if v is True else 'off' if v is False else v}" for k, v in data["features"].items()]
        lines += ["", f"features {', '.join(words)}"]
    if "schedule" in data:
        lines += [f"schedule of {data['schedule']['steps']} steps by {data['schedule']['convention']}, in the graph"]
    return lines


def _listed(value: object) -> object:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else value


def _value(name: str, value: object) -> object:
    if name == "bytes" and isinstance(value, int):
        return size(value)
    return f"{value:,}" if name == "parameters" and isinstance(value, int) else value


def _cache_shape(layer: dict[str, Any]) -> str:
    heads, width, value_width = layer["kv_heads"], layer["head_dim"], layer.get("value_dim") or layer["head_dim"]
    return f"2 x {heads} heads x {width}" if width == value_width else f"{heads} heads x ({width} + {value_width})"


def _contract(contract: dict[str, Any]) -> list[str]:
    """Spell a contract; the many caches of the layers take one line."""
    caches = {
        layer[key] for layer in contract["kv"] for key in ("past_key", "past_value", "present_key", "present_value")
    }
    caches |= {state[key] for state in contract.get("state", ()) for key in ("past", "present")}
    rows = [
        (kind, *row)
        for kind, tensors in (("in", contract["inputs"]), ("out", contract["outputs"]))
        for row in _rows([t for t in tensors if t["name"] not in caches])
    ]
    lines = ["  " + line for line in table(("", "name", "dtype", "shape"), rows).splitlines()]
    if contract["kv"]:
        place = "updated in place" if contract["kv_in_place"] else "copied"
        windows = sorted({layer["window"] for layer in contract["kv"]} - {None})
        sliding = f", sliding window {'/'.join(map(str, windows))}" if windows else ""
        lines += [
            f"  KV cache: {count} layers x {shape}, {contract['kv_dtype']}, {place}{sliding}"
            for shape, count in Counter(map(_cache_shape, contract["kv"])).items()
        ]
    if contract.get("state"):
        shapes = Counter("x".join(map(str, state["shape"])) for state in contract["state"])
        states = ", ".join(f"{count} of {shape}" for shape, count in shapes.items())
        lines.append(f"  recurrent states: {states}, float32; truncation only to remembered lengths")
    bounds = ", ".join(f"{name} {low} to {high}" for name, (low, high) in contract["bounds"].items())
    return [*lines, f"  bounds: {bounds}"]


def _rows(tensors: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Spell inputs or outputs; those whose names differ only in their last number, the caches, take one line."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for tensor in tensors:
        stem, dot, number = tensor["name"].rpartition(".")
        family = f"{stem}.*" if dot and number.isdigit() else tensor["name"]
        groups.setdefault((family, tensor["dtype"], _shape(tensor["shape"])), []).append(tensor["name"])
    return [
        (names[0] if len(names) == 1 else f"{names[0]} to {names[-1].rpartition('.')[2]}", dtype, shape)
        for (_, dtype, shape), names in groups.items()
    ]


def _shape(shape: list[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"
