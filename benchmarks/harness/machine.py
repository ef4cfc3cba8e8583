"""What else the machine is doing, and what it is (Linux)."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
FOREIGN_LIMIT = 0.05
STEAL_LIMIT = 0.03


@dataclass(frozen=True)
class CpuTimes:
    """CPU seconds since boot, all cores together."""

    busy: float
    steal: float
    total: float

    @classmethod
    def now(cls) -> "CpuTimes":
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        user, nice, system, idle, wait, irq, soft, steal = (int(field) / TICKS for field in fields)
        busy = user + nice + system + irq + soft
        return cls(busy, steal, busy + idle + wait + steal)


@dataclass(frozen=True)
class Load:
    """Shares of all cores, 0 to 1, taken by others and by the hypervisor while something ran."""

    foreign: float
    steal: float

    @property
    def dirty(self) -> bool:
        return self.foreign > FOREIGN_LIMIT or self.steal > STEAL_LIMIT


def load_between(before: CpuTimes, after: CpuTimes, own: float) -> Load:
    """Return the load of the machine between two readings, less `own` CPU seconds.

    >>> load = load_between(CpuTimes(10, 0, 100), CpuTimes(12, 0, 104), own=1.5)
    >>> load.foreign, load.dirty
    (0.125, True)
    """
    total = max(after.total - before.total, 1 / TICKS)
    foreign = max(after.busy - before.busy - own, 0.0)
    return Load(foreign / total, (after.steal - before.steal) / total)


def wait_until_quiet(limit_s: float) -> bool:
    """Return once a second has passed without foreign load; False when that did not come within `limit_s`."""
    end = time.monotonic() + limit_s
    while True:
        before, mine = CpuTimes.now(), time.process_time()
        time.sleep(1)
        load = load_between(before, CpuTimes.now(), time.process_time() - mine)
        if not load.dirty:
            return True
        if time.monotonic() > end:
            return False


def cpu_model() -> str:
    """Return the name, the count of cores and the vector extensions that matter."""
    text = Path("/proc/cpuinfo").read_text()
    values = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    values = {key.strip(): value.strip() for key, value in values.items()}
    known = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "asimddp", "i8mm")
    have = set((values.get("flags") or values.get("Features") or "").split())
    name = values.get("model name", os.uname().machine)
    return f"{name}, {os.cpu_count()} cores, " + " ".join(flag for flag in known if flag in have)
