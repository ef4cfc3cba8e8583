"""A process of its own that runs each phase of a bundle once and prints its peaks of memory as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edgewright.bench.memory import AnonymousPeak, status_bytes
from edgewright.bundle import read_manifest
from edgewright.errors import EdgewrightError
from edgewright.profile.measure import run_plain
from edgewright.profile.schedule import Request


def main(folder: str, asked: str) -> int:
    """Run; `asked` is a `Request` and the number of threads as JSON. Errors are one sentence on stderr."""
    given = json.loads(asked)
    threads, stages = given.pop("threads"), given.pop("stages")
    request = Request(**given, stages=None if stages is None else tuple(stages))
    path = Path(folder)
    try:
        with AnonymousPeak() as anonymous:
            run_plain(path, read_manifest(path), request, threads)
    except EdgewrightError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps({"peak_rss_bytes": status_bytes("VmHWM"), "peak_anonymous_bytes": anonymous.bytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
