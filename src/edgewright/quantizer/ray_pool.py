"""Evaluations on a Ray cluster: every worker opens the checkpoint by its path and gets rounded weights as arrays."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.errors import EdgewrightError, HostError, MissingExtraError, UsageError
from edgewright.files import canonical_json
from edgewright.formats import Array
from edgewright.models import build_llm
from edgewright.progress import SILENT, Progress
from edgewright.quantizer.candidates import Roundings
from edgewright.quantizer.evaluate import Mix, Weights
from edgewright.quantizer.judge import Judge, Judgement
from edgewright.quantizer.stream import FloatModel

_CONNECT_S, _CLOSE_S = 5.0, 30.0


class Worker:
    """What runs on the cluster: the float model, and the held-out rows. Answers with plain values only."""

    def __init__(self, path: str, fingerprint: str, rows: Sequence[Array], stride: int) -> None:
        self._path, self._fingerprint = Path(path), fingerprint
        self._rows, self._stride = [np.array(row) for row in rows], stride
        self._judge: Judge | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def ready(self) -> str:
        """Open the checkpoint; returns a sentence that says what is wrong, or nothing."""
        if not self._path.exists():
            return f"{self._path} is not there on {socket.gethostname()}: put the checkpoint under this path there."
        try:
            checkpoint = open_checkpoint(self._path)
            if fingerprint_of(checkpoint) != self._fingerprint:
                return f"{self._path} is another checkpoint on {socket.gethostname()} than here: copy it there."
            self._folder = tempfile.TemporaryDirectory(prefix="edgewright-")
            folder = Path(self._folder.name)
            stage = build_llm(checkpoint, max_context=max(len(row) for row in self._rows))
            model = FloatModel(stage, folder / "model", None, 1)
            self._judge = Judge(model, self._rows, folder, stride=self._stride)
        except EdgewrightError as error:
            return str(error)
        return ""

    def judge(self, names: list[str], *arrays: Array) -> dict[str, Any]:
        """Judge the model with the named parameters changed to the arrays."""
        assert self._judge is not None
        return dict(vars(self._judge.judge(dict(zip(names, arrays, strict=True)))))

    def close(self) -> None:
        """Delete what lies on the disk."""
        self._judge = None
        if self._folder is not None:
            self._folder.cleanup()


def fingerprint_of(checkpoint: Checkpoint) -> str:
    """Return what tells checkpoints apart without reading their weights: config, and names and shapes of tensors."""
    tensors = {name: [list(t.shape), t.dtype, t.nbytes] for name, t in checkpoint.tensors.items()}
    return hashlib.sha256(canonical_json({"config": checkpoint.config, "tensors": tensors})).hexdigest()


class RayEvaluator:
    """Mixes at once, each on a worker of its own; numbers are those of `LocalEvaluator`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: FloatModel,
        roundings: Roundings,
        rows: Sequence[Array],
        *,
        stride: int = 1,
        progress: Progress = SILENT,
    ) -> None:
        self._model, self._roundings, self._progress = model, roundings, progress
        path = str(Path(checkpoint.path).resolve())
        self._arguments = (path, fingerprint_of(checkpoint), list(rows), stride)
        self._workers: list[Any] = []
        self.evaluations = 0

    def evaluate(self, mixes: Sequence[Mix]) -> list[Judgement]:
        """Return a judgement of every mix, in order."""
        import ray
        from ray.util import ActorPool

        def send(worker: Any, mix: Mix) -> Any:
            weights = Weights(mix, self._model, self._roundings)
            return worker.judge.remote(list(weights), *(ray.put(weights[name]) for name in weights))

        found = []
        with _ray_errors():
            self._grow(min(len(mixes), _cpus()))
            title = f"evaluate {len(mixes)} {'mix' if len(mixes) == 1 else 'mixes'} on {len(self._workers)} workers"
            with self._progress.step(title, len(mixes)) as done:
                for values in ActorPool(self._workers).map(send, list(mixes)):
                    found.append(Judgement(**values))
                    self.evaluations += 1
                    done(1)
        return found

    def close(self) -> None:
        """Let the workers clean up, and give them back."""
        import ray

        workers, self._workers = self._workers, []
        with suppress(ray.exceptions.RayError):  # a worker that is gone must not hide what happened before
            ray.get([worker.close.remote() for worker in workers], timeout=_CLOSE_S)
        for worker in workers:
            ray.kill(worker)

    def _grow(self, count: int) -> None:
        """Start workers until there are `count`."""
        import ray

        more = max(1, count) - len(self._workers)
        if more <= 0:
            return
        with self._progress.step(f"start {more} workers"):
            kind: Any = ray.remote(num_cpus=1)(Worker)
            started = [kind.remote(*self._arguments) for _ in range(more)]
            self._workers += started
            for problem in ray.get([worker.ready.remote() for worker in started]):
                if problem:
                    raise HostError(problem)


def _cpus() -> int:
    import ray

    resources: Any = ray.cluster_resources  # it has no types
    return max(1, int(resources().get("CPU", 1)))


@contextmanager
def ray_cluster(address: str) -> Iterator[None]:
    """Be connected to a cluster inside the block: `local` starts one on this machine, `auto` finds one that runs on it.

    A cluster that is connected already is used, and left as it is. Raises MissingExtraError without Ray, UsageError for
    a wrong address, HostError for a cluster that can't be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingExtraError(
            "--ray needs the package ray, which is not installed: pip install 'edgewright[ray]'."
        ) from None
    _check_address(address)
    if ray.is_initialized():
        yield
        return
    with _kept_signals():
        try:
            options: dict[str, Any] = {"num_cpus": os.cpu_count(), "include_dashboard": False}
            options = options if address == "local" else {"address": address}
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except Exception as error:
            raise HostError(_unreachable(address, type(error).__name__)) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise UsageError for what is no address, HostError where nobody listens."""
    if address in ("local", "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--ray {address!r} is no address of a cluster: write local, auto or HOST:PORT.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise HostError(_unreachable(address, error.strerror or str(error))) from None


def _unreachable(address: str, reason: str) -> str:
    return (
        f"The Ray cluster {address!r} can't be reached ({reason}): check that it runs and its address, or leave --ray "
        "out to evaluate on this machine."
    )


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Give signals back to who had them: connecting takes SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _ray_errors() -> Iterator[None]:
    """Turn what Ray raises into one sentence."""
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()
        raise HostError(
            f"An evaluation on the Ray cluster failed ({type(error).__name__}: {reason[-1] if reason else ''}): see "
            "the cluster's logs, or leave --ray out to evaluate on this machine."
        ) from None
