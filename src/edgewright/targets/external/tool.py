"""Tool files: what there is to know of another vendor's compiler, as YAML.

Some ship in `tools/`; `--target-option tool=` takes the name of one, or the path of a user's file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

from edgewright.errors import UsageError
from edgewright.nodes import Node, read_yaml, shown, small_text
from edgewright.plugins import nearest
from edgewright.targets.external.template import Each, Words, check

_KEYS = (
    "title", "runtime", "arch", "static", "shapes", "opset", "ops", "options", "platforms", "calibration", "lists",
    "files", "commands", "environment", "version", "products", "timeout_s", "log_bytes", "success", "errors", "hide",
    "package",
)  # fmt: skip
_NEEDED = ("title", "runtime", "commands", "products")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
#: Where a tool's files may stand below its folder.
_PLACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
#: What the program finds in its folder, so that none of its own files may be called so.
TAKEN = ("model.onnx", "weights.bin", "calibration", "output")
FORMATS = ("npy", "raw")
_MOST_BYTES = 1 << 16
_LONGEST = 32768
Value = TypeVar("Value")


@dataclass(frozen=True)
class Option:
    """An option of a tool: its value unless another is given, those it may have (any if there are none), its help."""

    default: str
    values: tuple[str, ...] = ()
    help: str = ""


@dataclass(frozen=True)
class Version:
    """How a program is asked for its version: the words, and the pattern whose first group it is."""

    command: tuple[str, ...]
    pattern: re.Pattern[str]


@dataclass(frozen=True)
class Tool:
    """Another vendor's compiler. `docs/targets.md` says what each key of its file means.

    `commands` run one after the other in a folder of their own, without a shell. `products` are patterns below that
    folder; the first match of the first is what an engine loads. `digest` is that of the file.
    """

    name: str
    title: str
    runtime: str
    commands: tuple[tuple[str | Words, ...], ...]
    products: tuple[str, ...]
    digest: str
    arch: str = ""
    static: bool = False
    shapes: Mapping[str, int] = field(default_factory=dict)
    opset: int | None = None
    ops: frozenset[str] = frozenset()
    options: Mapping[str, Option] = field(default_factory=dict)
    platforms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    calibration: int = 0
    format: str = "npy"
    lists: Mapping[str, Each] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    version: Version | None = None
    timeout_s: float = 3600.0
    log_bytes: int = 1 << 20
    success: tuple[int, ...] = (0,)
    errors: re.Pattern[str] | None = None
    hide: tuple[re.Pattern[str], ...] = ()
    package: str = ""

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs of the commands, each once."""
        return tuple(dict.fromkeys(str(command[0]) for command in self.commands))


def tool_names() -> tuple[str, ...]:
    """Return the names of the tool files that ship."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _shipped()))


def find_tool(name: str) -> Tool:
    """Return the tool of a name, or of a file of the user's; raises UsageError, with the line where there is one."""
    for file in _shipped():
        if file.name.removesuffix(".yaml") == name:
            return _read(file)
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return _read(path)
    raise UsageError(f"The tool {shown(name)} is unknown; {nearest(name, tool_names())} Or give the path of a file.")


def _shipped() -> list[Traversable]:
    folder = resources.files("edgewright.targets.external") / "tools"
    return [file for file in folder.iterdir() if file.name.endswith(".yaml")]


def _read(file: Traversable) -> Tool:
    text = small_text(file, "tool file", "a page", _MOST_BYTES, UsageError)
    name = file.name.rpartition(".")[0]
    if not _NAME.fullmatch(name):
        raise UsageError(f"{file.name}: a tool is named after its file, in lower-case letters, digits and dashes.")
    return _tool(name, read_yaml(text, file.name), hashlib.sha256(text.encode()).hexdigest())


def _tool(name: str, top: Node, digest: str) -> Tool:
    keys = top.mapping(_KEYS)
    if missing := [key for key in _NEEDED if key not in keys]:
        raise top.wrong(f"a tool needs {', '.join(missing)} as well.")
    options = {key: _option(node) for key, node in _named(keys.get("options"), "an option")}
    lists = {key: _each(node) for key, node in _named(keys.get("lists"), "a list")}
    text = _Texts(tuple(options), tuple(lists))

    def given(key: str, read: Callable[[Node], Value], default: Value) -> Value:
        return read(keys[key]) if key in keys else default

    return Tool(
        name=name,
        title=keys["title"].text("title", 80),
        runtime=_spelled(keys["runtime"], "runtime"),
        commands=tuple(text.command(node) for node in _several(keys["commands"], "commands")),
        products=tuple(_pattern(node) for node in _several(keys["products"], "products")),
        digest=digest,
        arch=given("arch", text.one, ""),
        static=given("static", lambda node: node.truth("static"), False),
        shapes={symbol: node.whole(f"the size of {symbol}", 1) for symbol, node in _entries(keys.get("shapes"))},
        opset=given("opset", lambda node: node.whole("opset", 18, 24), None),
        ops=frozenset(node.text("an op", 80) for node in _listed(keys.get("ops"), "ops are a list")),
        options=options,
        platforms={key: _settings(node, options) for key, node in _entries(keys.get("platforms"))},
        lists=lists,
        files={key: text.file(key, node) for key, node in _entries(keys.get("files"))},
        environment={key: text.one(node) for key, node in _named(keys.get("environment"), "a variable")},
        version=given("version", _version, None),
        timeout_s=given("timeout_s", lambda node: node.number("timeout_s", 0.1, 7 * 86400), 3600.0),
        log_bytes=given("log_bytes", lambda node: node.whole("log_bytes", 1024, 1 << 28), 1 << 20),
        success=tuple(
            node.whole("an exit code", 0, 255) for node in _listed(keys.get("success"), "success is a list of codes")
        )
        or (0,),
        errors=given("errors", _regex, None),
        hide=tuple(_regex(node) for node in _listed(keys.get("hide"), "hide is a list of patterns")),
        package=given("package", lambda node: node.text("package", 300), ""),
        calibration=_calibration(keys.get("calibration"))[0],
        format=_calibration(keys.get("calibration"))[1],
    )


class _Texts:
    """Texts whose placeholders are checked."""

    def __init__(self, options: tuple[str, ...], lists: tuple[str, ...]) -> None:
        self._options, self._lists = options, lists

    def one(self, node: Node) -> str:
        value = node.text("a text with placeholders")
        check(node, value, options=self._options, lists=self._lists)
        return value

    def file(self, name: str, node: Node) -> str:
        if not _PLACE.fullmatch(name) or name in TAKEN:
            raise node.wrong(f"the file {shown(name)} must have a plain name, and none of {', '.join(TAKEN)}.")
        value = node.value
        if not isinstance(value, str) or len(value) > _LONGEST:
            raise node.wrong(f"the file {name} must be text of at most {_LONGEST} characters.")
        check(node, value, options=self._options, lists=self._lists)
        return value

    def command(self, node: Node) -> tuple[str | Words, ...]:
        items = node.items("a command is a list of words, of which the first is the program")
        words = tuple(self._repeated(item) if item.is_mapping else self.one(item) for item in items)
        if not words or not isinstance(words[0], str) or "{" in words[0]:
            raise node.wrong("a command begins with the name of a program, which has no placeholder.")
        return words

    def _repeated(self, node: Node) -> Words:
        keys = node.mapping(("each", "words", "sizes"))
        if missing := [key for key in ("each", "words") if key not in keys]:
            raise node.wrong(f"words for each input need {', '.join(missing)} as well.")
        words = []
        for item in keys["words"].items("words are a list"):
            words.append(item.text("a word"))
            check(item, words[-1], port=True)
        of = keys["each"].one_of(("inputs", "outputs"), "each")
        return Words(of, tuple(words), keys["sizes"].text("sizes", 8) if "sizes" in keys else ",")


def _several(node: Node, what: str) -> list[Node]:
    items = node.items(f"{what} are a list")
    if not items:
        raise node.wrong(f"there must be {what}.")
    return items


def _listed(node: Node | None, what: str) -> list[Node]:
    return [] if node is None else node.items(what)


def _entries(node: Node | None) -> list[tuple[str, Node]]:
    return [] if node is None else node.entries()


def _named(node: Node | None, what: str) -> list[tuple[str, Node]]:
    for name, value in _entries(node):
        if not _WORD.fullmatch(name):
            raise value.wrong(f"{what} must be named in letters, digits and underscores, not {shown(name)}.")
    return _entries(node)


def _option(node: Node) -> Option:
    keys = node.mapping(("default", "values", "help"))
    if "default" not in keys:
        raise node.wrong("an option needs a default.")
    values = (
        tuple(n.text("a value", 200) for n in keys["values"].items("values are a list")) if "values" in keys else ()
    )
    default = keys["default"].one_of(values, "the default") if values else keys["default"].text("the default", 200)
    return Option(default, values, keys["help"].text("help", 300) if "help" in keys else "")


def _settings(node: Node, options: Mapping[str, Option]) -> dict[str, str]:
    found = {}
    for key, value in node.mapping(tuple(options)).items():
        values = options[key].values
        found[key] = value.one_of(values, key) if values else value.text(key, 200)
    return found


def _each(node: Node) -> Each:
    keys = node.mapping(("of", "item", "between", "sizes"))
    if missing := [key for key in ("of", "item") if key not in keys]:
        raise node.wrong(f"a list needs {', '.join(missing)} as well.")
    item = keys["item"].text("item", 300)
    check(keys["item"], item, port=True)
    more = {key: keys[key].text(key, 8) for key in ("between", "sizes") if key in keys}
    return Each(keys["of"].one_of(("inputs", "outputs"), "of"), item, **more)


def _spelled(node: Node, what: str) -> str:
    text = node.text(what, 63)
    if not _NAME.fullmatch(text):
        raise node.wrong(f"{what} must be made of lower-case letters, digits, dots and dashes.")
    return text


def _pattern(node: Node) -> str:
    text = node.text("a product's pattern", 300)
    if text.startswith("/") or "\\" in text or ".." in text.split("/") or text.split("/")[0] in TAKEN[:3]:
        raise node.wrong(f"products are found below the tool's own folder, so {shown(text)} can't be one.")
    return text


def _regex(node: Node) -> re.Pattern[str]:
    text = node.text("a pattern", 300)
    try:
        return re.compile(text, re.MULTILINE)
    except re.error as error:
        raise node.wrong(f"{shown(text)} is no regular expression ({error}).") from None


def _version(node: Node) -> Version:
    keys = node.mapping(("command", "pattern"))
    if missing := [key for key in ("command", "pattern") if key not in keys]:
        raise node.wrong(f"version needs {', '.join(missing)} as well.")
    words = tuple(item.text("a word") for item in _several(keys["command"], "words"))
    pattern = _regex(keys["pattern"])
    if pattern.groups < 1:
        raise keys["pattern"].wrong("the pattern needs a group in parentheses, which is the version.")
    return Version(words, pattern)


def _calibration(node: Node | None) -> tuple[int, str]:
    """Return how many samples there are by default, and what their files are."""
    if node is None:
        return 0, FORMATS[0]
    keys = node.mapping(("count", "format"))
    return (
        keys["count"].whole("count", 0, 10000) if "count" in keys else 0,
        keys["format"].one_of(FORMATS, "the format") if "format" in keys else FORMATS[0],
    )
