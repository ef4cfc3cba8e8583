"""What a build starts from: a checkpoint that was opened, the recipe, and what is asked for besides.

Light on purpose: an up-to-date answer must not wait for heavy imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.build.key import build_key, checked_recipe, policy_record, source_record
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.checkpoint.policies.options import FLAGS
from edgewright.checkpoint.policy import PolicyCheckpoint, PolicyOptions, is_policy, open_policy
from edgewright.errors import UsageError
from edgewright.quant.recipe import Recipe

if TYPE_CHECKING:
    from edgewright.build.reduction import VocabularyRequest

#: The recipes that language models and policies get where none is asked for.
RECIPE, POLICY_RECIPE = "int4", "policy-int8"
#: Where the embedding table may be.
PLACES = ("inside", "outside")
#: The largest number of observations that a policy's stages take at once.
POLICY_BATCH = 8


@dataclass(frozen=True)
class PolicyRequest:
    """What is asked for of a policy: what its checkpoint doesn't say, and features by name.

    `features` are those that are not to have their default, see `graph.features`. `memory_bytes` is what a float32
    stage may take in verification, see `verify.policy`.
    """

    options: PolicyOptions = field(default_factory=PolicyOptions)
    features: Mapping[str, bool | str] = field(default_factory=dict)
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Request:
    """What is asked of a build besides its target and output; see `pipeline.deploy`. None is what fits the model."""

    recipe: str | Recipe | None = None
    max_context: int | None = None
    vocabulary: VocabularyRequest | None = None
    embeddings: str = "inside"
    policy: PolicyRequest | None = None
    allow_nonfinite: bool = False
    requantize: bool = False


@dataclass(frozen=True)
class LlmSource:
    """A language model to be built; `original` is the checkpoint that was given, `checkpoint` what is built from."""

    checkpoint: Checkpoint
    original: Checkpoint
    recipe: Recipe
    request: Request

    @property
    def kind(self) -> str:
        """The type of the model."""
        return str(self.checkpoint.config.get("model_type", "unknown"))

    def record(self) -> dict[str, Any]:
        """Return name, kind and files of the checkpoint; hashes what isn't known yet."""
        return source_record(self.checkpoint)

    def key(self, record: Mapping[str, Any], **options: Any) -> str:
        """Return the digest of a build of it."""
        asked = self.request
        return build_key(
            record,
            self.recipe,
            max_context=asked.max_context,
            vocabulary=asked.vocabulary and asked.vocabulary.key(),
            embeddings=asked.embeddings,
            requantize=asked.requantize,
            allow_nonfinite=asked.allow_nonfinite,
            **options,
        )


@dataclass(frozen=True)
class PolicySource:
    """A policy to be built; `original` is the checkpoint that was given, `checkpoint` what is built from."""

    checkpoint: PolicyCheckpoint
    original: PolicyCheckpoint
    recipe: Recipe
    request: Request

    @property
    def kind(self) -> str:
        """The type of the policy."""
        return self.checkpoint.kind

    @property
    def features(self) -> Mapping[str, bool | str]:
        """The features asked for by name."""
        return self.request.policy.features if self.request.policy else {}

    def record(self) -> dict[str, Any]:
        """Return name, kind and files of the checkpoint; hashes what isn't known yet."""
        return policy_record(self.checkpoint)

    def key(self, record: Mapping[str, Any], **options: Any) -> str:
        """Return the digest of a build of it; what the options answered stands in the spec, the sizes and the files."""
        given = self.checkpoint
        return build_key(
            record,
            self.recipe,
            policy=given.spec.to_json(),
            sizes=repr(given.sizes),
            features=dict(self.features),
            embeddings=self.request.embeddings,
            requantize=self.request.requantize,
            allow_nonfinite=self.request.allow_nonfinite,
            **options,
        )


Source = LlmSource | PolicySource


def open_source(path: str | Path, request: Request) -> Source:
    """Open a checkpoint of any kind for a build.

    Raises UsageError, which names the flag, on what is asked for but has no meaning for this kind of model; the errors
    of reading recipes and checkpoints.
    """
    if request.embeddings not in PLACES:
        raise UsageError(f"The embedding table can be inside or outside the graph, not {request.embeddings!r}.")
    policy = is_policy(path)
    _refuse_foreign(path, request, policy=policy)
    recipe = checked_recipe(
        request.recipe or (POLICY_RECIPE if policy else RECIPE),
        allow_nonfinite=request.allow_nonfinite,
        requantize=request.requantize,
        policy=policy,
    )
    if not policy:
        checkpoint = open_checkpoint(path)
        return LlmSource(checkpoint, checkpoint, recipe, request)
    asked = request.policy or PolicyRequest()
    found = open_policy(path, asked.options)
    check_tokenizer(found)
    return PolicySource(found, found, recipe, request)


def check_tokenizer(checkpoint: PolicyCheckpoint) -> None:
    """Raise TokenizerError where a policy has no tokenizer or none that loads, before anything else is done."""
    from edgewright.runtime.policy.prompt import load_tokenizer

    load_tokenizer(checkpoint.spec, checkpoint.sidecars()[checkpoint.spec.tokenizer])


def refuse_memory(policy: PolicyRequest | None, *, verify: bool) -> None:
    """Raise UsageError where memory is granted to a verification that isn't done."""
    if policy is not None and policy.memory_bytes is not None and not verify:
        raise UsageError("--memory is for the verification, which --no-verify leaves out: remove one of the two.")


def _refuse_foreign(path: str | Path, request: Request, *, policy: bool) -> None:
    if not policy:
        if request.policy is not None:
            raise UsageError(
                f"{Path(path).name} is not a robot policy, so options of policies ({_asked(request.policy)}) have no "
                "meaning: leave them out."
            )
        return
    wrong = {
        "--max-context": request.max_context is not None,
        "--vocab-size": request.vocabulary is not None,
    }
    if any(wrong.values()):
        names = " and ".join(name for name, given in wrong.items() if given)
        raise UsageError(
            f"{Path(path).name} is a robot policy, and {names} have a meaning for language models only: leave them out."
        )


def _asked(request: PolicyRequest) -> str:
    """Return the flags that a request was made with."""
    default = vars(PolicyOptions())
    given = [name for name, value in vars(request.options).items() if value != default[name]]
    names = [FLAGS.get(name, name) for name in given]
    names += ["--feature"] if request.features else []
    names += ["--memory"] if request.memory_bytes else []
    return ", ".join(names) or "none"
