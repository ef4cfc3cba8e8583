"""What a reader of a layout makes of its files: the spec, the statistics, and where the tokenizer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgewright.checkpoint.folder import inside
from edgewright.checkpoint.policies.options import PolicyOptions, option
from edgewright.checkpoint.policies.sizes import PolicySizes
from edgewright.checkpoint.text import MAX_JSON_BYTES, REMAKE, shown
from edgewright.errors import BundleError, ConfigError, MalformedHeaderError, TokenizerError
from edgewright.runtime.policy.spec import PolicySpec, Statistics

TOKENIZER = "tokenizer.json"
SENTENCEPIECE = ("paligemma_tokenizer.model", "tokenizer.model")
#: PaliGemma's texts begin with BOS and have no EOS.
_EDGES: Mapping[str, Any] = {"add_bos_token": True, "add_eos_token": False}
#: The class that LeRobot reads the SentencePiece model with, which ranks merges by the id of the piece.
GEMMA = "GemmaTokenizer"


@dataclass(frozen=True)
class Description:
    """A policy without its weights.

    `files` are the files that were read besides the weights; `given` are those of them that options may have named,
    which needn't be in the folder, by option: `statistics`, `tokenizer`.
    """

    spec: PolicySpec
    sizes: PolicySizes
    statistics: Statistics
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    tokenizer: Callable[[], bytes]
    notes: tuple[str, ...]
    given: Mapping[str, Path] = field(default_factory=dict)


def checked(spec: PolicySpec) -> PolicySpec:
    """Return a spec whose values don't contradict each other; raises ConfigError."""
    try:
        return PolicySpec.from_json(spec.to_json())
    except BundleError as error:
        reason = str(error).removeprefix("The bundle's policy.").split(", so ")[0]
        raise ConfigError(f"The policy's {reason}; correct the checkpoint's config or the options given.") from None


def agreed(name: str, asked: Any, found: Any, where: str) -> Any:
    """Return what the checkpoint says, after checking that an option given for it says the same."""
    if asked is not None and asked != found:
        raise ConfigError(
            f"The {option(name)} is {shown(asked)}, but {where} says {shown(found)}; leave the option out."
        )
    return found


def delta_mask(mask: tuple[bool, ...], state_dim: int, action_dim: int) -> tuple[bool, ...]:
    """Return a mask without the false values at its end; raises ConfigError if it reaches past state or actions."""
    while mask and not mask[-1]:
        mask = mask[:-1]
    if len(mask) > min(state_dim, action_dim):
        raise ConfigError(
            f"Action number {len(mask) - 1} is marked as relative to the state, but the state has {state_dim} numbers"
            f" and an action {action_dim}; correct the {option('delta_mask')} or the checkpoint's relative actions."
        )
    return mask


def own_names(cameras: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cameras; raises ConfigError where two have one name."""
    twice = next((name for name in cameras if cameras.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"The {option('cameras')} names {shown(twice)} twice; give each camera a name of its own.")
    return cameras


def required(options: PolicyOptions, cameras: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cameras that every observation must have."""
    names = default if options.required_cameras is None else options.required_cameras
    unknown = [name for name in names if name not in cameras]
    if unknown:
        raise ConfigError(
            f"The cameras {', '.join(map(shown, unknown))} of the {option('required_cameras')} are not among"
            f" the policy's ({', '.join(map(shown, cameras))}); name some of these."
        )
    return names


def find_tokenizer(
    folder: Path, options: PolicyOptions, names: tuple[str, ...], extra: tuple[str, ...] = ()
) -> Path | None:
    """Return the tokenizer's file: the option's, the first of `names` in the folders `extra`, or beside the weights.

    Both forms encode alike but for runs of spaces, so `names` begins with the form that the project itself reads.
    Raises ConfigError if the option names nothing.
    """
    if options.tokenizer is not None:
        path = Path(options.tokenizer)
        if not path.is_dir() and not path.is_file():
            what = "is no file" if path.exists() else "does not exist"
            raise ConfigError(f"The tokenizer {path} {what}; give a {TOKENIZER} or a SentencePiece model.")
        found = _in_folder(path, names) if path.is_dir() else path
        if found is None:
            raise ConfigError(
                f"The folder {path} has no tokenizer (looked for {', '.join(names)}); give the file itself."
            )
        return found
    places = [f"{place}/" for place in extra] + [""]
    return next((found for place in places if (found := _in_folder(folder, names, place)) is not None), None)


def _in_folder(folder: Path, names: tuple[str, ...], place: str = "") -> Path | None:
    return next((inside(folder, place + name) for name in names if (folder / place / name).is_file()), None)


def read_tokenizer(path: Path | None, folder: Path, reader: str) -> bytes:
    """Return a `tokenizer.json`; `reader` is the class that the project reads a SentencePiece model with, if any.

    Raises TokenizerError if there is no tokenizer, or one that can't be rebuilt.
    """
    if path is None:
        raise TokenizerError(
            f"{folder} has no tokenizer (looked for {', '.join((TOKENIZER, *SENTENCEPIECE))}), and this policy's"
            f" project keeps it elsewhere; download it and give it with the {option('tokenizer')}."
        )
    if path.suffix == ".json":
        try:
            if path.stat().st_size > MAX_JSON_BYTES:
                raise MalformedHeaderError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB; {REMAKE}.")
            return path.read_bytes()
        except OSError as error:
            raise TokenizerError(f"{path} can't be read ({error.strerror or error}); give a tokenizer.") from None
    from edgewright.checkpoint.sentencepiece import rebuild_tokenizer

    return rebuild_tokenizer(path, {**_EDGES, "tokenizer_class": reader}, {})
