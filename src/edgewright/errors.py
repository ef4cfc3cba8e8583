"""The errors a user can meet: each is one sentence that says what is wrong, why, and what to do.

Every class carries the process exit code that the command line ends with. Nothing here is heavy:
the device side and the host side both import it.
"""

from __future__ import annotations


class EdgewrightError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 3


class UsageError(EdgewrightError):
    """The command line or a call's arguments are wrong."""

    exit_code = 2


class CheckpointError(EdgewrightError):
    """A checkpoint can't be read."""


class SourceNotFoundError(CheckpointError):
    """The path given as a checkpoint isn't there, or holds no checkpoint."""


class TruncatedFileError(CheckpointError):
    """A file ends before the data its header announces."""


class MalformedHeaderError(CheckpointError):
    """A file's header breaks its format's rules (sizes, counts, text, duplicate keys)."""


class TensorLayoutError(CheckpointError):
    """A tensor's offsets, shape and dtype don't fit each other or the file."""


class MissingShardError(CheckpointError):
    """An index names a shard or a tensor that is not there, or a shard holds what the index doesn't."""


class UnsupportedFormatError(CheckpointError):
    """A file is well-formed but uses a dtype or a feature that isn't supported."""


class TokenizerError(EdgewrightError):
    """The tokenizer is missing or can't be rebuilt from what the checkpoint holds."""


class TemplateError(EdgewrightError):
    """A chat template is missing, refuses its input, runs too long or tries something forbidden."""


class ModelError(EdgewrightError):
    """A checkpoint is readable but does not describe a model that can be built."""


class UnknownModelTypeError(ModelError):
    """No family of that `model_type` is known."""


class ConfigError(ModelError):
    """Config keys are unknown, missing or have a value the family can't honour."""


class TensorMismatchError(ModelError):
    """The checkpoint's tensors are not exactly the ones the family declares."""


class RecipeError(EdgewrightError):
    """A quantization recipe is wrong; the message names the file's line where there is one."""


class PlatformError(EdgewrightError):
    """A platform's file is wrong; the message names the file's line where there is one."""


class CalibrationDataError(EdgewrightError):
    """Calibration data are empty, damaged, in another form or encoding than expected, or don't fit the model."""


class BundleError(EdgewrightError):
    """A bundle can't be opened or doesn't hold what its manifest says."""


class BundleTamperedError(BundleError):
    """A file of a bundle has another digest or size than the manifest records."""


class BundleSchemaError(BundleError):
    """A manifest has a schema version this program doesn't know."""


class TargetMismatchError(BundleError):
    """A bundle was compiled for another machine or other library versions than these."""


class GenerationError(EdgewrightError):
    """A request can't be run: bad sampling values, unknown token ids, a stale prefix cache."""


class TruncationError(GenerationError):
    """A session can't go back to a length: recurrent states can't be cut."""


class ContextOverflowError(GenerationError):
    """A prompt or a continuation doesn't fit into the context the bundle was built for."""


class SchedulingError(GenerationError):
    """Tasks can't be scheduled: all that are left are paused for ever, or a task does not keep the rules of one."""


class ObservationError(EdgewrightError):
    """A robot's observation can't be used: cameras, images, state or prompt are not what the policy takes."""


class GenieError(EdgewrightError):
    """A file of Qualcomm Genie's (a configuration, a profile) can't be read, or breaks the library's rules."""


class ProfileError(EdgewrightError):
    """A profile that an engine wrote can't be read, or is not of what it is said to be of."""


class DatasetError(EdgewrightError):
    """A robot dataset's folder can't be read, or holds something else than its own description says."""


class GoldenError(EdgewrightError):
    """A golden can't be read, has another schema, or is of another model than the bundle."""


class VerificationError(EdgewrightError):
    """A bundle was verified and failed."""

    exit_code = 1


class HostError(EdgewrightError):
    """The machine can't do what was asked: an extra is missing, no space, no permission."""

    exit_code = 4


class PluginError(HostError):
    """An installed package brings a target, a dialect or an engine that can't be used."""


class ToolError(HostError):
    """A compiler of another vendor is missing, or failed; its own words are in the message."""


class MissingExtraError(HostError):
    """A package that this command needs is not installed."""


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, or its class where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class OutOfMemoryError(HostError):
    """The machine has not enough memory for what was asked."""


class OutputError(HostError):
    """The output exists already or can't be written."""
