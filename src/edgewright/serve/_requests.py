"""One request of a policy server, from its bytes to the bytes or the sentence that answer it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from websockets.asyncio.server import ServerConnection

from edgewright.errors import GenerationError, ObservationError
from edgewright.serve.errors import CommittedError, MessageError, RefusedError
from edgewright.serve.log import Log
from edgewright.serve.metrics import Metrics
from edgewright.serve.protocol import COMMITTED, Inferred
from edgewright.serve.queue import InferenceQueue, Outcome
from edgewright.serve.settings import Settings
from edgewright.serve.wire import decode_observation, encode

#: A sentence for a client is cut here: it may quote what the client sent.
_MAX_SENTENCE_CHARS = 600
_INTERNAL = "The policy failed on this observation; the server's log tells why under the error's id."


class Requests:
    """Answers requests, counts and logs them; to be made and used inside one event loop."""

    def __init__(
        self, queue: InferenceQueue, settings: Settings, metrics: Metrics, log: Log, *, takes_committed: bool = False
    ) -> None:
        self._queue = queue
        self._takes_committed = takes_committed
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._refusing = False
        self.under_way = 0
        self.idle = asyncio.Event()
        self.idle.set()

    def refuse_more(self) -> None:
        """Refuse every request from now on."""
        self._refusing = True

    async def serve(
        self,
        client: ServerConnection,
        message: str | bytes,
        gone: asyncio.Task[None],
        peer: str,
        previous_ms: float | None,
    ) -> None:
        """Answer one message; raises ConnectionClosed.

        `gone` ends when the connection does: a request of a client that left is taken out of the queue.
        `previous_ms` is what the request before took on this connection, the wait for it included; the client is told.
        """
        start = time.perf_counter()
        self._metrics.requests += 1
        self.under_way += 1
        self.idle.clear()
        answering = asyncio.create_task(self._answer(message, peer, start, previous_ms))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await client.send(answering.result())
            else:
                self._metrics.left += 1
                self._log.event("left", peer=peer)
        finally:
            answering.cancel()
            self.under_way -= 1
            if not self.under_way:
                self.idle.set()

    async def _answer(self, message: str | bytes, peer: str, start: float, previous_ms: float | None) -> str | bytes:
        try:
            async with asyncio.timeout(self._settings.deadline_ms / 1000) as limit:
                self._check_open()
                observation = self._observation(message)
                outcome = await self._queue.run(observation)
            _raise(outcome.error, continued=COMMITTED in observation)
            answer = encode(_result(outcome, previous_ms))
        except RefusedError as refused:
            self._metrics.refusals[refused.reason] += 1
            self._log.event("refused", reason=refused.reason, peer=peer)
            return str(refused)
        except MessageError as error:
            return self._error("message", error, peer, str(error))
        except (ObservationError, CommittedError) as error:
            return self._error("observation", error, peer, str(error))
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                text = (
                    f"The actions were not ready within {self._settings.deadline_ms:g} ms, so the request was given up."
                )
                return self._error("deadline", error, peer, text)
            return self._error("internal", error, peer, _INTERNAL, trace=True)
        seconds = time.perf_counter() - start
        self._metrics.answers += 1
        self._metrics.latency.observe(seconds)
        self._metrics.inference.observe(outcome.infer_ms / 1000)
        self._log.event(
            "answered",
            routine=True,
            peer=peer,
            bytes=len(message),
            queue_ms=round(outcome.queue_ms, 2),
            infer_ms=round(outcome.infer_ms, 2),
            total_ms=round(1000 * seconds, 2),
        )
        return answer

    def _check_open(self) -> None:
        if self._refusing:
            raise RefusedError(
                "stopping", "The server is stopping, so the observation was refused: connect again later."
            )
        self._queue.check_room()  # before anything is unpacked

    def _observation(self, message: str | bytes) -> Mapping[str, Any]:
        if isinstance(message, str):
            raise MessageError("The message is a text; an observation is a binary message of msgpack.")
        observation = decode_observation(message, self._settings.limits)
        if COMMITTED in observation:
            self._check_committed(observation[COMMITTED])
        return observation

    def _check_committed(self, actions: Any) -> None:
        if not self._takes_committed:
            raise MessageError(
                f"This policy takes no {COMMITTED}, as its metadata says: leave them out, and take another mode."
            )
        if not isinstance(actions, np.ndarray) or actions.ndim != 2 or actions.dtype.kind not in "fiu":
            raise MessageError(f"The {COMMITTED} are not a table of numbers: send one row of the robot's for each.")

    def _error(self, kind: str, error: BaseException, peer: str, text: str, *, trace: bool = False) -> str:
        self._metrics.errors[kind] += 1
        error_id = self._log.error(kind, error, trace=trace, peer=peer)
        return f"{' '.join(text.split())[:_MAX_SENTENCE_CHARS]} [error {error_id}]"


def _raise(error: BaseException | None, *, continued: bool) -> None:
    """Raise a policy's error; what would end the event loop (SystemExit and the like) becomes an ordinary one.

    What a policy says of committed actions is for the client that sent them.
    """
    if continued and isinstance(error, GenerationError):
        raise CommittedError(str(error)) from error
    if isinstance(error, Exception):
        raise error
    if error is not None:
        raise RuntimeError(f"the policy raised {type(error).__name__}") from error


def _result(outcome: Outcome, previous_ms: float | None) -> dict[str, Any]:
    """Return the answer's map: names are openpi's, `notes` is added where the policy has any."""
    chunk = outcome.chunk
    if chunk is None:
        raise TypeError("the policy returned nothing")
    server_timing = {"infer_ms": outcome.infer_ms, "queue_ms": outcome.queue_ms}
    if previous_ms is not None:
        server_timing["prev_total_ms"] = previous_ms
    result = {"actions": _actions(chunk), "policy_timing": _policy_timing(chunk), "server_timing": server_timing}
    notes = [str(note) for note in getattr(chunk, "notes", ())]
    return result | {"notes": notes} if notes else result


def _actions(chunk: Inferred) -> np.ndarray[Any, Any]:
    """Return the actions; a robot must never be sent anything but finite numbers, whatever the policy's guards do."""
    actions = np.asarray(chunk.actions, dtype=np.float32)
    if actions.ndim != 2 or not actions.size or not np.isfinite(actions).all():
        raise ValueError(f"the policy's actions of shape {actions.shape} are not a table of finite numbers")
    return actions


def _policy_timing(chunk: Inferred) -> dict[str, Any]:
    """Return the policy's times by its own names with `_ms`; openpi's clients look for `infer_ms`."""
    times = {f"{name}_ms": _plain(value) for name, value in chunk.timings.items()}
    return {"infer_ms": times["total_ms"], **times} if "total_ms" in times else times


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple | np.ndarray) else float(value)
