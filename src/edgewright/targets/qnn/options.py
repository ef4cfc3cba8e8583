"""What can be asked of the QNN back end, and the chip that a platform stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgewright.errors import UsageError
from edgewright.files import sha256_of
from edgewright.genie.soc import Soc, soc_of
from edgewright.targets.platform import Platform

#: An HTP maps about 3.4 GB in a protection domain; what weights and caches leave of it is for activations.
PART_BYTES = 3 << 30
#: The first architecture that multiplies 16-bit activations, and shares weights between graphs.
_OLDEST = 73
_MOST_ROWS = 2048

#: Every option with a sentence for the help.
OPTIONS: Mapping[str, str] = {
    "ar": "tokens that the prompt's graph takes at once (default: 128, or as many as half of the context)",
    "context": "tokens of the context that the graphs have (default: the bundle's, at most 4096)",
    "kv": "the key/value cache's codes, uint16 or uint8 (default: uint16)",
    "weights": "recipe keeps the recipe's integers where the HTP has them; int8 and int4 round all linears (default: "
    "recipe)",
    "calibration": "a UTF-8 text that activations are observed on (default: the sample that verification uses)",
    "tokens": "tokens of it that are run (default: 512, at most the context)",
    "part-bytes": f"most bytes of weights and caches in one binary (default: {PART_BYTES})",
    "share": "on: the prompt's and the token's graph share one binary and its weights; off: one each, which the "
    "simulator can load (default: on)",
    "genie-config": "a checkpoint's config.json, where positions are scaled; for genie_config.json",
    "soc-model": "the chip's number, where the platform's name isn't known",
    "dsp-arch": "its DSP's architecture, such as v75",
}


@dataclass(frozen=True)
class Asked:
    """The options, checked; None where the default depends on the stage."""

    ar: int | None
    context: int | None
    kv_bits: int
    weights: str
    calibration: Path | None
    tokens: int
    part_bytes: int
    share: bool
    config: Path | None
    soc: Soc


def asked(platform: Platform | None, options: Mapping[str, str]) -> Asked:
    """Return what is asked for; raises UsageError for a value or a chip that can't be."""
    kv = _one_of(options, "kv", "uint16", "uint8")
    ar, context = _number(options, "ar", 2, _MOST_ROWS), _number(options, "context", 4, 1 << 20)
    if ar is not None and context is not None:
        _check_rows(ar, context)
    return Asked(
        ar=ar,
        context=context,
        kv_bits=int(kv.removeprefix("uint")),
        weights=_one_of(options, "weights", "recipe", "int8", "int4"),
        calibration=Path(options["calibration"]) if "calibration" in options else None,
        tokens=_number(options, "tokens", 16, 1 << 16) or 512,
        part_bytes=_number(options, "part-bytes", 1024, 1 << 40) or PART_BYTES,
        share=_one_of(options, "share", "on", "off") == "on",
        config=Path(options["genie-config"]) if "genie-config" in options else None,
        soc=_soc(platform, options),
    )


def goal_key(platform: Platform | None, options: Mapping[str, str]) -> dict[str, Any]:
    """Return what decides over a build besides the options' words: the chip, and what their files hold."""
    told = asked(platform, options)
    files = {"calibration": told.calibration, "genie-config": told.config}
    digests = {name: sha256_of(path) for name, path in files.items() if path is not None and path.is_file()}
    return {"soc": asdict(told.soc), "files": digests}


def sizes(asked: Asked, longest: int) -> tuple[int, int]:
    """Return rows of the prompt's graph and the context, for a stage that was built for `longest` tokens.

    Raises UsageError for more than that.
    """
    if asked.context is not None and asked.context > longest:
        raise UsageError(
            f"The option context is {asked.context} and the model was built for {longest} tokens: give less, or deploy "
            "with a larger --max-context."
        )
    context = asked.context or min(longest, 4096)
    rows = asked.ar or max(2, min(128, context // 2))
    _check_rows(rows, context)
    return rows, context


def _check_rows(rows: int, context: int) -> None:
    if rows >= context:
        raise UsageError(f"The option ar is {rows} and the context holds {context} tokens: give less than that.")


def _soc(platform: Platform | None, options: Mapping[str, str]) -> Soc:
    number = _number(options, "soc-model", 1, 1 << 16)
    if platform is None:
        raise UsageError("The target qnn compiles for a chip: name one with --for, such as snapdragon-8-gen-3.")
    if platform.compiler not in (None, "qnn"):
        raise UsageError(
            f"The platform {platform.name} has no HTP (its compiler is {platform.compiler}): name a chip with --for, "
            "such as snapdragon-8-gen-3."
        )
    try:
        soc = soc_of(platform.name, soc_model=number, dsp_arch=options.get("dsp-arch"))
    except UsageError as error:
        words = str(error).replace("--soc-model and --dsp-arch", "the target's options soc-model and dsp-arch")
        raise UsageError(words) from None
    if int(soc.dsp_arch[1:]) < _OLDEST:
        raise UsageError(
            f"The chip {soc.name} has an HTP {soc.dsp_arch}, and 16-bit activations need v{_OLDEST} or newer: name "
            "another chip."
        )
    return soc


def _number(options: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    if name not in options:
        return None
    text = options[name]
    if not text.isascii() or not text.isdigit() or len(text) > 15 or not low <= int(text) <= high:
        raise UsageError(f"The option {name} is a whole number from {low} to {high}, not {text!r}.")
    return int(text)


def _one_of(options: Mapping[str, str], name: str, *choices: str) -> str:
    value = options.get(name, choices[0])
    if value not in choices:
        raise UsageError(f"The option {name} is one of {', '.join(choices)}, not {value!r}.")
    return value
