"""How much memory a comparison may take: a limit that is the same everywhere, and what this machine has left."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: What a float32 stage may take unless more is granted; the same on every machine, so that verdicts are.
DEFAULT_BYTES = 4_000_000_000
#: Where nothing tells what is free.
_UNKNOWN_BYTES = 1_000_000_000
_MEMINFO = Path("/proc/meminfo")
_GROUPS, _OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
#: Pages of files, which the kernel takes back before anybody is killed.
_RECLAIMED = ("inactive_file", "active_file", "total_inactive_file", "total_active_file")
#: Files of a group in both versions of its interface: the limit, and what is taken.
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


@dataclass(frozen=True)
class Memory:
    """What a float32 stage may take: `bytes` where they are granted, else the default; never more than is left."""

    bytes: int | None = None

    def holds(self, needed: float) -> bool:
        """Tell whether so many bytes fit."""
        return needed <= min(DEFAULT_BYTES if self.bytes is None else self.bytes, free_bytes())


def free_bytes() -> int:
    """Return the bytes that this process can still take: what the machine has free, within its container's limit."""
    free = _machine_bytes()
    return min(_UNKNOWN_BYTES if free is None else free, *_group_bytes())


def _machine_bytes() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _group_bytes() -> list[int]:
    """Return what each control group that this process is in has left; at least one number, however large."""
    left = [1 << 62]
    for folder in _group_folders():
        for limit, taken in _FILES:
            with suppress(OSError, ValueError):
                most = int((folder / limit).read_text(encoding="ascii"))  # "max" is no number, and no limit
                left.append(max(0, most - int((folder / taken).read_text(encoding="ascii")) + _reclaimed(folder)))
    return left


def _group_folders() -> list[Path]:
    """Return the folders of this process's memory groups, inner ones first; a container may see its own as the root."""
    names = ["/"]
    with suppress(OSError, ValueError):
        for line in _OWN_GROUP.read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers in ("", "memory") and ".." not in name:
                names.append(name)
    folders: dict[Path, None] = {}
    for root in (_GROUPS, _GROUPS / "memory"):
        for name in names:
            inner = root / name.strip("/")
            folders |= dict.fromkeys(place for place in (inner, *inner.parents) if place.is_relative_to(root))
    return list(folders)


def _reclaimed(folder: Path) -> int:
    with suppress(OSError, ValueError):
        lines = [line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines()]
        found = {name: int(value) for name, value in lines if name in _RECLAIMED}
        # the older interface has a group's own pages and those of all below it; the larger count has both
        return max(sum(v for n, v in found.items() if n.startswith("total_") is whole) for whole in (False, True))
    return 0
