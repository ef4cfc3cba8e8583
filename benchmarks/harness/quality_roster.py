"""Whose weights are compared on held-out text, and how they are made."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from harness.roster import Entry

AS_RUN = "as run"
WEIGHTS_ONLY = "weights only"
MODES = (WEIGHTS_ONLY, AS_RUN)


@dataclass(frozen=True)
class Contender:
    """One line of the table: an entry of the race, and what its weights were made with."""

    entry: Entry
    calibrated: bool = False
    """Whether its maker sees the calibration text."""

    bundle: Path | None = None
    """A finished bundle of ours, taken as it is."""

    @property
    def name(self) -> str:
        return self.entry.name


def _llama(kind: str, *, imatrix: bool = False) -> Contender:
    recipe = {"type": kind} | ({"imatrix": True} if imatrix else {})
    name, weights = (f"llama.cpp {kind} imatrix", f"{kind.lower()}_imatrix") if imatrix else (f"llama.cpp {kind}", "")
    return Contender(Entry(name, "llama_cpp", recipe, weights or kind.lower()), calibrated=imatrix)


def _openvino(mode: str, group: int, *, estimate: bool = False) -> Contender:
    settings = {"mode": mode, "group_size": group, "awq": True, "scale_estimation": estimate}
    kind = mode.lower().replace("_", " ")
    name = f"OpenVINO {kind} group {group} AWQ" + (" scale estimation" if estimate else "")
    weights = f"nncf_{mode.lower()}_g{group}_awq" + ("_se" if estimate else "")
    return Contender(Entry(name, "openvino_genai", {"nncf": settings}, weights), calibrated=True)


LLAMA = ("Q4_0", "Q4_K_M", "Q5_K_M", "Q8_0")

CONTENDERS = (
    *(_llama(kind) for kind in LLAMA),
    *(_llama(kind, imatrix=True) for kind in LLAMA[:3]),
    *(_openvino("INT4_SYM", group) for group in (32, 64, 128)),
    _openvino("INT4_SYM", 64, estimate=True),
    _openvino("INT4_ASYM", 64),
)


def peers(names: list[str] | None) -> list[Contender]:
    """Return the peers' lines; `names` are names or parts of them, or peers' environments; None means all.

    >>> [contender.name for contender in peers(["llama.cpp Q4_0", "group 128"])]
    ['llama.cpp Q4_0', 'OpenVINO int4 sym group 128 AWQ']
    """
    known = {contender.name for contender in CONTENDERS}

    def wanted(contender: Contender, name: str) -> bool:
        if name in known:
            return name == contender.name
        return name.lower() in contender.name.lower() or contender.entry.peer.startswith(name)

    return [contender for contender in CONTENDERS if names is None or any(wanted(contender, name) for name in names)]


def ours(source: str) -> Contender:
    """Return a line of ours: a bundle, a quantized Hugging Face folder (kept as stored), a recipe file or its name.

    `NAME=SOURCE` says what to call it.
    """
    name, _, rest = source.rpartition("=")
    path = Path(rest).resolve()
    label = name or Path(rest).stem
    if (path / "manifest.json").exists():
        return Contender(Entry(f"edgewright {label}", "edgewright", {}, f"bundle-{label}"), bundle=path)
    if (path / "config.json").exists():
        recipe = {"recipe": "stored", "source": str(path)}
        return Contender(Entry(f"edgewright {label}", "edgewright", recipe, f"folder-{label}"))
    recipe = {"recipe": rest}
    if path.is_file():
        recipe = {"recipe": str(path), "digest": sha256(path.read_bytes()).hexdigest()[:16]}
    return Contender(Entry(f"edgewright {label}", "edgewright", recipe, f"recipe-{label}"))
