"""Platforms as data: one YAML file each, with memory, bandwidth, peaks, formats, and where each number comes from.

Files ship in `platforms/`. A user adds one as a file of its own, or in a folder: the one that the environment variable
EDGEWRIGHT_PLATFORMS names, or `edgewright/platforms` among the user's configuration. Installed packages bring theirs as
modules with files beside them, under the entry point group `edgewright.platforms`. A user's file goes before a
package's of the same name, and that before a shipped one.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType

from edgewright.errors import PlatformError, PluginError, UsageError
from edgewright.formats import ACTIVATIONS
from edgewright.nodes import Node, read_yaml, shown, small_text
from edgewright.plugins import PLATFORMS, load_plugin, nearest, package_of, plugin_names

#: The environment variable that names a folder of platform files.
FOLDER_VARIABLE = "EDGEWRIGHT_PLATFORMS"
#: How sure a number is: from the vendor's own document, computed from such, from others, or not public.
CONFIDENCES = ("datasheet", "derived", "reported", "unknown")
#: What has a source of its own.
SOURCED = ("memory_bytes", "bandwidth_bytes_per_s", "peak_ops_per_s", "formats")
#: Families of formats that weights and the key/value cache may have; activations have those of recipes.
WEIGHTS = ("int4", "int8", "fp8", "nvfp4", "mxfp8", "mxfp4")
CACHES = ("int8", "fp8")
FLOATS = ("float32", "float16", "bfloat16")
#: What a peak may be stated for; MX formats compute as FP8 and FP4 do.
PEAKS = (*FLOATS, "int8", "int4", "fp8", "nvfp4")
_KEYS = (
    "title", "aliases", "this_machine", "memory_bytes", "bandwidth_bytes_per_s", "peak_ops_per_s", "float", "weights",
    "activations", "caches", "compiler", "engine", "compute_capability", "sources", "notes",
)  # fmt: skip
_CAPABILITY = re.compile(r"[1-9][0-9]?\.[0-9]")
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_ALIASES = re.compile(r"^aliases: \[(.*)\]$", re.MULTILINE)
_MOST_BYTES = 1 << 16
_MOST_FILES = 1000


@dataclass(frozen=True)
class Source:
    """Where a number comes from: a public document's title, and how sure it is; the title is empty if none is known."""

    title: str
    confidence: str


@dataclass(frozen=True)
class Platform:
    """A platform. Numbers are None, and peaks missing, where no public document has them.

    `memory_bytes` is all there is, of which the system takes a part. `peak_ops_per_s` are dense operations a second by
    dtype, a multiply-add being two. `float` is the float type it computes with. `weights`, `activations` and `caches`
    are families of formats; floats always go. `compute_capability` is that of an NVIDIA GPU, such as "8.9".
    """

    name: str
    title: str
    memory_bytes: int | None
    bandwidth_bytes_per_s: float | None
    peak_ops_per_s: dict[str, float]
    float: str
    weights: frozenset[str]
    activations: frozenset[str]
    caches: frozenset[str]
    compiler: str | None = None
    engine: str | None = None
    compute_capability: str | None = None
    aliases: tuple[str, ...] = ()
    this_machine: bool = False
    sources: dict[str, Source] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def platform_names() -> tuple[str, ...]:
    """Return the names of all platforms, without aliases: the user's, then those that ship."""
    return tuple(dict.fromkeys(_stem(file.name) for file in _files()))


def find_platform(name: str) -> Platform:
    """Return the platform of a name or an alias; raises UsageError with the nearest names, PlatformError for its file.

    Names are looked up among the files that there are, so none leads out of their folders.
    """
    files = list(_files())
    for file in files:
        if _stem(file.name) == name:
            return _read(file)
    known: dict[str, Traversable] = {}
    for file in files:
        for alias in _aliases(file):
            known.setdefault(alias, file)
    if name in known:
        return _read(known[name])
    every = list(dict.fromkeys([*(_stem(file.name) for file in files), *known]))
    raise UsageError(
        f"The platform {shown(name)} is unknown; {nearest(name, every)} A file of its own goes with --platform-file."
    )


def read_platform(path: Path) -> Platform:
    """Return the platform of a file; its name is the file's. Raises PlatformError with the line."""
    return _read(path)


@functools.cache
def shipped_platforms() -> dict[str, Platform]:
    """Return the platforms that ship, by name."""
    return {_stem(file.name): _read(file) for file in _listed(resources.files("edgewright.targets") / "platforms")}


def _files() -> Iterator[Traversable]:
    """Yield all platform files, a user's first."""
    if folder := os.environ.get(FOLDER_VARIABLE):
        path = Path(folder)
        if not path.is_dir():
            raise PlatformError(f"{FOLDER_VARIABLE} names {shown(folder)}, which is no folder: correct or unset it.")
        yield from _listed(path)
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path("~").expanduser() / ".config")
    own = Path(base) / "edgewright" / "platforms"
    if own.is_dir():
        yield from _listed(own)
    for name in plugin_names(PLATFORMS):
        yield from _listed(_brought(name))
    yield from _listed(resources.files("edgewright.targets") / "platforms")


def _brought(name: str) -> Traversable:
    module = load_plugin(PLATFORMS, name)
    if not isinstance(module, ModuleType):
        raise PluginError(
            f"The platforms {name} of the package {package_of(PLATFORMS, name)} are no module with files: update it."
        )
    return resources.files(module)


def _listed(folder: Traversable) -> list[Traversable]:
    try:
        found = [file for file in folder.iterdir() if file.name.endswith(".yaml") and file.is_file()]
    except OSError as error:
        raise PlatformError(f"{folder} can't be read ({error.strerror}): check its permissions.") from None
    if len(found) > _MOST_FILES:
        raise PlatformError(f"{folder} holds more than {_MOST_FILES} platform files: name a folder of platforms.")
    return sorted(found, key=lambda file: file.name)


def _stem(name: str) -> str:
    return name.removesuffix(".yaml")


def _aliases(file: Traversable) -> tuple[str, ...]:
    """Return a file's aliases; where they stand in one line, nothing else is parsed."""
    found = _ALIASES.search(_text(file))
    if found is not None:
        return tuple(word for word in found[1].replace(",", " ").split() if _NAME.fullmatch(word))
    return _read(file).aliases


def _text(file: Traversable) -> str:
    return small_text(file, "platform", "a few lines", _MOST_BYTES, PlatformError)


def _read(file: Traversable) -> Platform:
    text, name = _text(file), _stem(file.name)
    if not _NAME.fullmatch(name):
        raise PlatformError(
            f"{file.name}: a platform is named after its file, in lower-case letters, digits, dots and dashes, such as "
            "my-board.yaml: rename it."
        )
    return _platform(name, read_yaml(text, file.name, PlatformError))


def _platform(name: str, top: Node) -> Platform:
    keys = top.mapping(_KEYS)
    needed = ("title", "memory_bytes", "bandwidth_bytes_per_s", "peak_ops_per_s", "float", *_FORMATS, "sources")
    if missing := [key for key in needed if key not in keys]:
        raise top.wrong(f"a platform needs {', '.join(missing)} as well; write null for a number that isn't known.")
    memory = _number(keys["memory_bytes"], "memory_bytes", 1 << 20, 1 << 50)
    bandwidth = _number(keys["bandwidth_bytes_per_s"], "bandwidth_bytes_per_s", 1e6, 1e16)
    peaks = {
        dtype: node.number(f"the peak of {dtype}", 1e6, 1e19)
        for dtype, node in keys["peak_ops_per_s"].mapping(PEAKS).items()
    }
    sources = _sources(keys["sources"])
    stated = {"memory_bytes": memory, "bandwidth_bytes_per_s": bandwidth, "peak_ops_per_s": peaks or None}
    for key, value in stated.items():
        if (value is None) != (sources[key].confidence == "unknown"):
            words = "no number, so its confidence is unknown" if value is None else "a number, so it needs a source"
            raise keys["sources"].wrong(f"{key} has {words}.")
    return Platform(
        name=name,
        title=keys["title"].text("title", 80),
        memory_bytes=None if memory is None else int(memory),
        bandwidth_bytes_per_s=bandwidth,
        peak_ops_per_s=peaks,
        float=keys["float"].one_of(FLOATS, "the float type"),
        **{key: frozenset(_words(keys[key], key, known)) for key, known in _FORMATS.items()},
        compiler=_optional(keys.get("compiler"), "compiler"),
        engine=_optional(keys.get("engine"), "engine"),
        compute_capability=_capability(keys.get("compute_capability")),
        aliases=_own_aliases(keys.get("aliases")),
        this_machine=keys["this_machine"].truth("this_machine") if "this_machine" in keys else False,
        sources=sources,
        notes=tuple(n.text("a note", 300) for n in keys["notes"].items("notes are a list")) if "notes" in keys else (),
    )


_FORMATS = {"weights": WEIGHTS, "activations": ACTIVATIONS, "caches": CACHES}


def _number(node: Node, what: str, low: float, high: float) -> float | None:
    return None if node.value is None else node.number(f"{what} (null where it isn't known)", low, high)


def _optional(node: Node | None, what: str) -> str | None:
    return None if node is None or node.value is None else node.text(what, 80)


def _capability(node: Node | None) -> str | None:
    if node is None or node.value is None:
        return None
    text = node.text("compute_capability (in quotes)", 5)
    if not _CAPABILITY.fullmatch(text):
        raise node.wrong(f'the compute_capability {shown(text)} isn\'t such as "8.9".')
    return text


def _words(node: Node, what: str, known: tuple[str, ...]) -> list[str]:
    return [item.one_of(known, f"the format of {what}") for item in node.items(f"{what} are a list of formats")]


def _own_aliases(node: Node | None) -> tuple[str, ...]:
    if node is None:
        return ()
    found = []
    for item in node.items("aliases are a list of names"):
        name = item.text("an alias", 63)
        if not _NAME.fullmatch(name):
            raise item.wrong(f"the alias {shown(name)} isn't made of lower-case letters, digits, dots and dashes.")
        found.append(name)
    return tuple(found)


def _sources(node: Node) -> dict[str, Source]:
    found = {}
    for key, entry in node.mapping(SOURCED).items():
        parts = entry.mapping(("title", "confidence"))
        if "confidence" not in parts:
            raise entry.wrong(f"a source needs a confidence: {', '.join(CONFIDENCES)}.")
        confidence = parts["confidence"].one_of(CONFIDENCES, "the confidence")
        title = parts["title"].text("a source's title", 300) if "title" in parts else ""
        if bool(title) == (confidence == "unknown"):
            raise entry.wrong("a source that is known has a title, and one that is unknown has none.")
        found[key] = Source(title, confidence)
    if missing := [key for key in SOURCED if key not in found]:
        raise node.wrong(f"sources need {', '.join(missing)} as well.")
    return found
