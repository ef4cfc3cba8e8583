"""What the race asks of an engine."""

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Options = dict[str, Any]
"""Engine settings of one roster entry, such as {"flash": False}."""


Contents = dict[str, Any]
"""What the weight file holds: {"bytes": size of the file or files, "types": {type: bytes}}."""


class Timing(NamedTuple):
    """Seconds from the prompt to the first new token, and from there to the last one."""

    first: float
    rest: float


class Engine(ABC):
    """One loaded model, batch 1, greedy, end tokens ignored. `threads` is set by the engine's own configuration."""

    packages: tuple[str, ...] = ()
    """Distributions whose versions go into the report."""

    modules: tuple[str, ...] = ()
    """Modules to import before the clock of the load time starts."""

    @staticmethod
    @abstractmethod
    def prepare(checkpoint: Path, out: Path, recipe: Options) -> None:
        """Write into the folder `out` what the engine needs to run the Hugging Face folder `checkpoint`."""

    @staticmethod
    def contents(path: Path) -> Contents:
        """Return the size and the types of the weights in the folder that `prepare` wrote."""
        raise NotImplementedError("this engine does not say what its files hold")

    @abstractmethod
    def __init__(self, path: Path, options: Options, threads: int, capacity: int) -> None:
        """Load the folder that `prepare` wrote; `capacity` is the longest context that will be asked for."""

    @abstractmethod
    def generate(self, ids: list[int], count: int) -> Timing:
        """Forget everything, read the prompt, produce `count` tokens."""

    @abstractmethod
    def logits(self, ids: list[int]) -> np.ndarray:
        """Return the logits after every token of the prompt, float32 [len(ids), vocabulary]."""


class SteppedEngine(Engine):
    """An engine whose decode loop is ours."""

    @abstractmethod
    def start(self, ids: list[int]) -> int:
        """Forget everything, read the prompt, return the first new token."""

    @abstractmethod
    def step(self, token: int) -> int:
        """Read one token, return the next."""

    def generate(self, ids: list[int], count: int) -> Timing:
        begin = time.perf_counter()
        token = self.start(ids)
        first = time.perf_counter()
        for _ in range(count - 1):
            token = self.step(token)
        return Timing(first - begin, time.perf_counter() - first)
