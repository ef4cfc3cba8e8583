"""Which engine runs which stage on this machine's CPU: what `--engine` may say, and what that means for a build.

Light on purpose: an up-to-date answer must not wait for heavy imports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgewright.build.key import POLICY_STAGES, STAGES
from edgewright.errors import UsageError
from edgewright.plugins import nearest
from edgewright.runtime.paired import PREFILL
from edgewright.targets import goal_key

#: The engines of this machine's CPU, and the targets that compile for them. The first is the one without a choice.
ENGINES = {"onnxruntime": "cpu", "openvino": "openvino"}
DEFAULT_ENGINE = "onnxruntime"
AUTO = "auto"
Optimize = Literal["latency", "memory"]
OPTIMIZE: tuple[Optimize, ...] = ("latency", "memory")
#: The stages of a language model that an engine may be named for; `prefill` is the first one again.
LLM_STAGES = (*STAGES, PREFILL)

#: An engine for each stage of a build, in the order they run in.
Engines = Mapping[str, str]


@dataclass(frozen=True)
class EngineRequest:
    """What was asked for: an engine for all stages, or `by_stage` for some of them; or `auto`, for which `optimize`
    says what counts.
    """

    by_stage: Mapping[str, str]
    default: str = DEFAULT_ENGINE
    optimize: Optimize | None = None

    @property
    def auto(self) -> bool:
        """Whether engines are to be measured."""
        return self.optimize is not None

    @property
    def used(self) -> tuple[str, ...]:
        """The engines that may come to run a stage."""
        return tuple(ENGINES) if self.auto else tuple(dict.fromkeys((self.default, *self.by_stage.values())))

    def of(self, *, policy: bool) -> dict[str, str]:
        """Return the engine of every stage of a policy, or of a language model.

        Raises UsageError for a stage that it hasn't, or a stage `prefill` on the engine that `llm` has.
        """
        known = POLICY_STAGES if policy else LLM_STAGES
        if odd := [name for name in self.by_stage if name not in known]:
            what = "a policy" if policy else "a language model"
            raise UsageError(f"There is no stage {', '.join(odd)} in {what}: its stages are {', '.join(known)}.")
        stages = POLICY_STAGES if policy else STAGES
        found = {name: self.by_stage.get(name, self.default) for name in stages}
        if PREFILL in self.by_stage:
            if self.by_stage[PREFILL] == found[STAGES[0]]:
                raise UsageError(
                    f"A stage prefill on {found[STAGES[0]]} would be the stage llm once more: name another engine for "
                    "it, or leave it out."
                )
            found[PREFILL] = self.by_stage[PREFILL]
        return found

    def key(self, *, policy: bool) -> dict[str, Any]:
        """Return what of the engines decides over a build, nothing for the default; raises as `of` does."""
        found = self.of(policy=policy)
        used = set(self.used) if self.auto else set(found.values())
        if used == {DEFAULT_ENGINE}:
            return {}
        goals = [goal_key(ENGINES[engine], None, {}) for engine in sorted(used)]
        said: Any = f"{AUTO} {self.optimize}" if self.auto else found
        return {"engines": said, "engine_compilers": [goal["compilers"] for goal in goals if "compilers" in goal]}


def engine_request(engine: str | None, optimize: str | None = None) -> EngineRequest:
    """Read `--engine NAME | auto | STAGE=NAME,...` and `--optimize`; raises UsageError on what it doesn't understand.

    Which stages there are is looked at when the model is known: see `EngineRequest.of`.
    """
    if optimize is not None and engine != AUTO:
        raise UsageError("--optimize says what --engine auto picks by: give both, or leave it out.")
    if optimize is not None and optimize not in OPTIMIZE:
        raise UsageError(f"--optimize is {' or '.join(OPTIMIZE)}, not {optimize!r}.")
    if engine == AUTO:
        return EngineRequest({}, optimize=optimize or OPTIMIZE[0])
    if engine is None:
        return EngineRequest({})
    if "=" not in engine:
        return EngineRequest({}, _known(engine, (*ENGINES, AUTO)))
    by_stage: dict[str, str] = {}
    for pair in engine.split(","):
        stage, equals, name = pair.partition("=")
        if not equals or not stage:
            raise UsageError(f"--engine {engine!r} is not of the form STAGE=ENGINE,...: write prefill=openvino.")
        if stage in by_stage:
            raise UsageError(f"--engine names the stage {stage} twice: leave one out.")
        by_stage[stage] = _known(name, tuple(ENGINES))
    return EngineRequest(by_stage)


def _known(name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise UsageError(f"The engine {name!r} is unknown; {nearest(name, names)}")
    return name
