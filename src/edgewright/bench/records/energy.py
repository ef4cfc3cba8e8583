"""Energy counters of the processor's packages, as Linux's powercap has them (Intel's and AMD's RAPL)."""

from __future__ import annotations

from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")
_UJ_PER_J = 1e6


class EnergyMeter:
    """Counts joules from its making on: of everything the packages do, not of one process."""

    def __init__(self, folder: Path = _POWERCAP) -> None:
        # Others at the same level hold the packages (psys), or what is in them already (dram of a package).
        self._counters = [path for path in sorted(folder.glob("intel-rapl:*")) if _text(path / "name")[:7] == "package"]
        self._begin = [_number(path / "energy_uj") for path in self._counters]

    def joules(self) -> float | None:
        """Return the joules so far, a counter's wrap within them counted once; None where no counter can be read."""
        total = 0
        for path, begin in zip(self._counters, self._begin, strict=True):
            now = _number(path / "energy_uj")
            if begin is None or now is None:
                return None
            if now < begin:
                limit = _number(path / "max_energy_range_uj")
                if limit is None:
                    return None
                now += limit + 1
            total += now - begin
        return total / _UJ_PER_J if self._counters else None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
