"""Executes a plan with trtexec, the program of classic TensorRT, which builds for the GPU of the machine it runs on."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from edgewright.errors import ToolError
from edgewright.targets.tensorrt.plan import BuildPlan, Profile

_ERROR = re.compile(r"\[E\]\s*(.*)")
_VERSION = re.compile(r"TensorRT[^\n]*?\bv?(\d{5,6})\b|TensorRT version: (\d+\.\d+\.\d+)")
#: Longest build, in seconds.
_LONGEST = 4 * 3600


def command(plan: BuildPlan, program: str = "trtexec") -> list[str]:
    """Return the command line that builds a plan's engine, to be run in the plan's folder."""
    words = [program, f"--onnx={plan.graph}", f"--saveEngine={plan.engine}", "--skipInference"]
    words.append("--stronglyTyped")
    words += [f"--staticPlugins={name}" for name in plan.plugins]
    for index, profile in enumerate(plan.profiles):
        if len(plan.profiles) > 1:
            words.append(f"--profile={index}")
        words += [f"--{which}Shapes={_shapes(profile, which)}" for which in ("min", "opt", "max")]
    if plan.workspace_bytes is not None:
        words.append(f"--memPoolSize=workspace:{plan.workspace_bytes >> 20}M")
    return [*words, f"--timingCacheFile={plan.timing_cache}", "--profilingVerbosity=detailed", "--noTF32"]


def build_engine(plan: BuildPlan, folder: Path) -> str:
    """Build `folder / plan.engine`; returns trtexec's version. Raises ToolError with trtexec's own words."""
    program = shutil.which("trtexec")
    if program is None:
        raise ToolError("trtexec is not on the PATH: install TensorRT, or use builder=script and build on the device.")
    try:
        done = subprocess.run(
            command(plan, program), cwd=folder, capture_output=True, text=True, timeout=_LONGEST, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"trtexec can't be run for {plan.stage} ({type(error).__name__}): run it by hand.") from None
    (folder / plan.timing_cache).unlink(missing_ok=True)
    said = f"{done.stdout}\n{done.stderr}"
    if done.returncode or not (folder / plan.engine).is_file():
        raise ToolError(f"trtexec can't build {plan.stage} (exit {done.returncode}): {_words(said)}")
    return _version(said)


def _shapes(profile: Profile, which: str) -> str:
    return ",".join(f"{name}:{'x'.join(map(str, getattr(b, which)))}" for name, b in profile.shapes.items())


def _words(said: str) -> str:
    errors = _ERROR.findall(said)
    last: Sequence[str] = [line.strip() for line in said.splitlines() if line.strip()][-3:]
    return " ".join(errors[:3] or last)[:600] or "it gives no reason."


def _version(said: str) -> str:
    """Return the version that it says of itself, such as 10.3.0, empty where it says none."""
    found = _VERSION.search(said)
    if found is None:
        return ""
    if found[2]:
        return found[2]
    number = int(found[1])
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
