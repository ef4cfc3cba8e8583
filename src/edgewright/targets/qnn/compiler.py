"""Makes context binaries, in a process of its own: `python -m edgewright.targets.qnn.compiler JOB`.

The provider numbers what it makes from the start of the process, so that a binary has the same bytes only if nothing
was compiled before it; and a fault in a vendor's library ends no build without a word.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from edgewright.errors import ToolError, first_line
from edgewright.quiet_ort import ort
from edgewright.runtime.engines.qnn import htp_session

_JOB = "engine.job.json"
_NOISE = re.compile(r"\x1b\[[0-9;]*m|^.*?\[[EWIV]:onnxruntime:[^\]]*\]\s*")


def make_contexts(
    folder: Path, graphs: Mapping[str, str], binary: str, options: Mapping[str, str], *, share: bool
) -> list[str]:
    """Compile a part's graphs in `folder`: from `graphs` (model, by the context's file name) to one `binary`.

    Returns the names of the binaries: one for all graphs where they `share` their weights, else one each. Raises
    ToolError with the provider's own words where it fails.
    """
    job = folder / _JOB
    job.write_text(json.dumps({"graphs": dict(graphs), "options": dict(options), "share": share}), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "edgewright.targets.qnn.compiler", _JOB]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    finally:
        job.unlink(missing_ok=True)
    if done.returncode:
        raise ToolError(f"ONNX Runtime's QNN provider failed on {', '.join(graphs.values())}: {_words(done)}")
    return _named(folder, list(graphs), binary, share=share)


def _words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [_NOISE.sub("", line).strip() for line in done.stderr.splitlines()]
    told = next((line for line in reversed(lines) if line), "")
    return told[:500] or f"it ended with {done.returncode}."


def _named(folder: Path, contexts: Sequence[str], binary: str, *, share: bool) -> list[str]:
    """Give the binaries their names, and tell the contexts."""
    names: list[str] = []
    for index, context in enumerate(contexts):
        model = onnx.load(folder / context, load_external_data=False)
        entries = [a for node in model.graph.node for a in node.attribute if a.name == "ep_cache_context"]
        wanted = binary if share else f"{Path(binary).with_suffix('')}_{index + 1}.bin"
        made = folder / entries[0].s.decode()
        if made.is_file() and wanted not in names:
            (folder / wanted).parent.mkdir(parents=True, exist_ok=True)
            made.replace(folder / wanted)
            names.append(wanted)
        for entry in entries:
            entry.s = wanted.encode()
        (folder / context).write_bytes(model.SerializeToString(deterministic=True))
    return names


def main(job: Path) -> None:
    """Compile the graphs of a job in the working directory."""
    told = json.loads(job.read_text(encoding="utf-8"))
    graphs = list(told["graphs"].items())
    for index, (context, model) in enumerate(graphs):
        config = {
            "ep.context_enable": "1",
            "ep.context_file_path": context,
            "ep.context_embed_mode": "0",
        }
        if told["share"]:
            config["ep.share_ep_contexts"] = "1"
            if index == len(graphs) - 1:
                config["ep.stop_share_ep_contexts"] = "1"
        # By a relative path: it is part of the compiled graph's name.
        made = ort.InferenceSession(model, htp_session(told["options"], config))
        graphs[index] = (context, made)  # those before must live until the last one is made


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception as error:  # another library's words are all there is to tell
        sys.stderr.write(f"{first_line(error)}\n")
        sys.exit(1)
