"""Start a worker, watch its memory and the machine, and bring back its result."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.machine import CpuTimes, load_between
from harness.peers import BENCHMARKS

SAMPLE_S = 0.01


class WorkerError(RuntimeError):
    """A worker ended without a result; the message ends with the last lines it printed."""


def anonymous_mb(pid: int) -> float:
    """Return the anonymous resident memory of a process in MB, 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def child_seconds() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_worker(python: Path, mode: str, job: dict[str, Any], timeout: float = 7200) -> dict[str, Any]:
    """Run `worker.py MODE` under `python`; the result also says what memory it took and what others did meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        output = Path(folder) / "output.txt"
        command = [python, "worker.py", mode, json.dumps(job | {"result": str(result)})]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        before, mine = CpuTimes.now(), child_seconds()
        with output.open("wb") as stream:
            process = subprocess.Popen(
                command, cwd=BENCHMARKS, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
            )
            peak = _watch(process, time.monotonic() + timeout)
        load = load_between(before, CpuTimes.now(), child_seconds() - mine)
        if process.returncode != 0 or not result.exists():
            tail = output.read_text(errors="replace").splitlines()[-25:]
            raise WorkerError(f"{mode} of {job.get('peer', '?')} ended with {process.returncode}:\n" + "\n".join(tail))
        measured = {"peak_anon_mb": peak, "foreign": load.foreign, "steal": load.steal, "dirty": load.dirty}
        return json.loads(result.read_text()) | measured


def _watch(process: subprocess.Popen[bytes], end: float) -> float:
    """Wait for the process and return the peak of its anonymous memory."""
    peak = 0.0
    try:
        while process.poll() is None:
            peak = max(peak, anonymous_mb(process.pid))
            if time.monotonic() > end:
                print("a worker ran past its time and was stopped", file=sys.stderr)
                process.kill()
            time.sleep(SAMPLE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return peak
