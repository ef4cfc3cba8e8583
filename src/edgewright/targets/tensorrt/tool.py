"""The builders of TensorRT engines that may be here, what they can build for, and what is chosen among them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from edgewright.errors import MissingExtraError, ToolError, UsageError
from edgewright.files import sha256_of
from edgewright.targets.platform import Platform

RTX, TRTEXEC, SCRIPT, AUTO = "rtx", "trtexec", "script", "auto"
BUILDERS = (AUTO, RTX, TRTEXEC, SCRIPT)
#: The package that builds on any machine, and the module it is.
RTX_PACKAGE, RTX_MODULE = "tensorrt-rtx-cu12-bindings", "tensorrt_rtx_bindings"
#: What TensorRT for RTX builds for.
RTX_CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
#: The lowest capability whose tensor cores have a type, by ONNX's name of it.
FIRST_WITH = {"FLOAT8E4M3FN": (8, 9), "FLOAT4E2M1": (10, 0), "FLOAT8E8M0": (10, 0), "BFLOAT16": (8, 0)}
#: The options, each with a sentence.
OPTIONS = {
    "builder": "who builds the engine: rtx, trtexec, script, or auto, the first of these that can (default: auto)",
    "capability": "the GPU's compute capability, such as 8.9 (default: the platform's that --for names)",
    "batch": "most sequences or observations at once (default: 4)",
    "workspace": "most MiB of scratch memory that a kernel may have (default: the builder's)",
    "plugins": "plug-in libraries to load before the graph is read, in order, with colons between them",
}
_CAPABILITY = re.compile(r"[1-9][0-9]?\.[0-9]")
_MOST_MEBIBYTES = 1 << 20


@dataclass(frozen=True)
class Asked:
    """What is asked of a build, checked."""

    builder: str
    capability: str
    batch: int
    workspace_bytes: int | None
    plugins: tuple[Path, ...]

    @property
    def arch(self) -> str:
        """What a machine with the GPU is called in a manifest."""
        return f"sm{self.capability.replace('.', '')}"


def asked_of(platform: Platform | None, options: Mapping[str, str]) -> Asked:
    """Return what a platform and options ask for.

    Raises UsageError for a value that can't be, MissingExtraError and ToolError for a builder that isn't here.
    """
    capability = _capability(platform, options)
    workspace = _number(options, "workspace", _MOST_MEBIBYTES)
    return Asked(
        builder=_builder(options.get("builder", AUTO), capability),
        capability=capability,
        batch=_number(options, "batch", 1024) or 4,
        workspace_bytes=None if workspace is None else workspace << 20,
        plugins=_plugins(options.get("plugins", "")),
    )


def _capability(platform: Platform | None, options: Mapping[str, str]) -> str:
    given, own = options.get("capability"), None if platform is None else platform.compute_capability
    if given is None and own is None:
        if platform is not None:
            raise UsageError(
                f"{platform.title} has no GPU that TensorRT builds for (its file names no compute_capability): name "
                "another platform, or the GPU with --target-option capability=8.9."
            )
        raise UsageError(
            "An engine of TensorRT is made for one kind of GPU: name the platform with --for, such as rtx-4090, or its "
            "compute capability with --target-option capability=8.9."
        )
    if given is not None and not _CAPABILITY.fullmatch(given):
        raise UsageError(f"capability={given} is no compute capability: write one such as 8.9.")
    if given is not None and own is not None and given != own:
        raise UsageError(
            f"capability={given} isn't that of the platform {platform.name if platform else ''}, which is {own}: leave "
            "one of them out."
        )
    return given or own or ""


def _number(options: Mapping[str, str], name: str, most: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:12]) <= most:
        raise UsageError(f"{name}={text} is no whole number from 1 to {most}.")
    return int(text)


def _plugins(text: str) -> tuple[Path, ...]:
    found = tuple(Path(name) for name in text.split(":") if name)
    for path in found:
        if not path.is_file():
            raise UsageError(f"The plug-in library {path} is not there: correct --target-option plugins.")
        if ".so" not in path.suffixes:
            raise UsageError(f"The plug-in library {path} is no .so file: correct --target-option plugins.")
    if len({path.name for path in found}) < len(found):
        raise UsageError("Two plug-in libraries have one file name, and both are copied into the bundle: rename one.")
    return found


def _builder(wanted: str, capability: str) -> str:
    if wanted not in BUILDERS:
        raise UsageError(f"builder={wanted} is unknown; known are {', '.join(BUILDERS)}.")
    rtx, here = capability in RTX_CAPABILITIES, shutil.which("trtexec") is not None
    if wanted == AUTO:
        if rtx and has_rtx():
            return RTX
        return TRTEXEC if here and local_capability() == capability else SCRIPT
    if wanted == RTX and not rtx:
        raise UsageError(
            f"TensorRT for RTX builds for compute capability {', '.join(RTX_CAPABILITIES)}, not {capability}: use "
            "builder=script, and build on the device."
        )
    if wanted == RTX and not has_rtx():
        raise MissingExtraError("TensorRT for RTX is not installed: pip install 'edgewright[tensorrt]'")
    if wanted == TRTEXEC and not here:
        raise ToolError("trtexec is not on the PATH: install TensorRT, or use builder=script and build on the device.")
    if wanted == TRTEXEC and (found := local_capability()) not in (None, capability):
        raise UsageError(
            f"trtexec builds for the GPU of this machine, whose compute capability is {found}, not {capability}: use "
            "builder=script, and build on the device."
        )
    return wanted


def has_rtx() -> bool:
    """Tell whether TensorRT for RTX is installed."""
    return util.find_spec(RTX_MODULE) is not None


def rtx_version() -> str:
    """Return the version of TensorRT for RTX, empty where it isn't installed."""
    try:
        return metadata.version(RTX_PACKAGE)
    except metadata.PackageNotFoundError:
        return ""


def local_capability() -> str | None:
    """Return the compute capability of this machine's first GPU, None where there is none that says so."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    first = next(iter(done.stdout.split()), "")
    return first if done.returncode == 0 and _CAPABILITY.fullmatch(first) else None


def goal_key(platform: Platform | None, options: Mapping[str, str]) -> dict[str, object]:
    """Return what besides the options' words decides over a build: the builder and its version, plug-ins' bytes."""
    asked = asked_of(platform, options)
    program = shutil.which("trtexec") if asked.builder == TRTEXEC else None
    version = rtx_version() if asked.builder == RTX else sha256_of(Path(program)) if program else ""
    return {
        "builder": asked.builder,
        "capability": asked.capability,
        "version": version,
        "plugins": {path.name: sha256_of(path) for path in asked.plugins},
    }
