"""The layout of GPTQ (AutoGPTQ, GPTQModel, and AutoRound's packing that is the same): 2, 3, 4 and 8 bits.

Per quantized module: `qweight` int32 `[width * bits / 32, rows]`, a dense stream of unsigned codes down each column;
`qzeros` int32 `[groups, rows * bits / 32]`, along the rows; `scales` `[groups, rows]`; `g_idx` int32 `[width]`, the
group of every column, in any order where activations ordered them. value = (code - zero point) * scale.

Version 1 stores zero points less one. The subtraction is made on whole 32-bit words (but for 3 bits), so that a zero
point of 0 borrows from the next one; adding on whole words undoes it. Older tools shifted -1 into the word instead,
which overwrites what stands above: the last two fields are full then, and such words are refused.

Codes of 2 and 3 bits are held in 4, unchanged but for a common offset.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgewright.checkpoint.encoded import EncodedTensor
from edgewright.checkpoint.layouts._gptq_config import LAYOUT, Config, Scheme, parse
from edgewright.checkpoint.layouts.bits import WORD, pack_words, unpack_words
from edgewright.checkpoint.layouts.modules import Modules, needs_untying
from edgewright.checkpoint.layouts.quantization import Quantization
from edgewright.checkpoint.layouts.weights import FLOATS, Rows, int_weight, need_matrix, need_shape, stored_array
from edgewright.checkpoint.tensor import StoredTensor, widen
from edgewright.errors import CheckpointError, UnsupportedFormatError
from edgewright.formats import Array, LinearInput

_SUFFIXES = ("qweight", "qzeros", "scales", "g_idx")


def read(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], Quantization]:
    """Read a GPTQ checkpoint; see `Reader`."""
    parsed = parse(config)
    modules = Modules(tensors, LAYOUT, _SUFFIXES)
    inputs: dict[bytes, LinearInput] = {}
    labels: Counter[str] = Counter()
    for module in modules.quantized("qweight"):
        scheme = parsed.scheme_of(module)
        if scheme is None:
            raise CheckpointError(
                f"The config of the {LAYOUT} checkpoint leaves {module} out, but the file holds it quantized: they "
                "don't belong together, take another copy."
            )
        modules.result[f"{module}.weight"] = _Module(modules, module, scheme, parsed).weight(inputs)
        labels[scheme.label] += 1
    if not labels:
        raise CheckpointError(f"The config says that the checkpoint is quantized by {LAYOUT}, but it has no qweight.")
    if parsed.only:
        modules.need_no_plain(_is_quantized(parsed), _is_quantized(parsed))
    modules.finish()
    version = "" if len(parsed.offsets) > 1 else f" v{2 - parsed.offsets[0]}"
    method = str(config.get("quant_method", "gptq"))
    narrow = sum(count for label, count in labels.items() if label[0] in "23")
    return modules.result, Quantization(
        f"{method}{version} ({', '.join(sorted(labels))})",
        untied=needs_untying(modules.result),
        notes=(f"{narrow} weights of fewer than 4 bits are held in 4",) if narrow else (),
    )


def _is_quantized(config: Config) -> Callable[[str], bool]:
    return lambda module: config.scheme_of(module) is not None


class _Module:
    """The tensors of one quantized module, checked against each other."""

    def __init__(self, modules: Modules, module: str, scheme: Scheme, config: Config) -> None:
        self._module, self._scheme, self._config = module, scheme, config
        self._codes = modules.take(f"{module}.qweight", "int32")
        self._zeros = modules.take(f"{module}.qzeros", "int32")
        self._scales = modules.take(f"{module}.scales", FLOATS)
        words, self._rows = need_matrix(self._codes)
        bits = scheme.bits
        self._width = words * WORD // bits
        if words * WORD % bits or self._rows * bits % WORD:
            raise CheckpointError(
                f"{module}.qweight has the shape {[words, self._rows]}, which holds no whole columns of {bits} bits: "
                "the checkpoint's config and its tensors disagree."
            )
        self._groups = 1 if scheme.group is None else -(-self._width // scheme.group)
        need_shape(self._scales, (self._groups, self._rows))
        need_shape(self._zeros, (self._groups, self._rows * bits // WORD))
        names = ("int32", "int64")
        # AutoRound leaves the index out where it says nothing.
        self._index = (
            modules.take(f"{module}.g_idx", names)
            if len(config.offsets) == 1
            else modules.optional(f"{module}.g_idx", names)
        )
        #: What makes zero points of stored words, and the rows that whole words hold.
        self._step = math.lcm(bits, WORD) // bits
        self._one = pack_words(np.ones((1, self._step), np.uint8), bits).view(np.uint32)[0]

    def weight(self, inputs: dict[bytes, LinearInput]) -> EncodedTensor:
        """Return the module's weight; equal permutations become one input of `inputs`."""
        scheme = self._scheme
        order = self._order()
        given = None if order is None else inputs.setdefault(order.tobytes(), LinearInput(permutation=order))
        zeros: Rows | None = None
        if not scheme.symmetric:
            self._need_whole_zeros()
            zeros = lambda start, stop: self._zero_points(start, stop, self._config.offsets[0])  # noqa: E731
        return int_weight(
            f"{self._module}.weight",
            (self._rows, self._width),
            scheme.bits,
            scheme.group,
            self._code_rows,
            self._scale_rows,
            zeros,
            parts=(self._codes, self._zeros, self._scales),
            order=order,
            half_scales=self._scales.dtype == "float16",
            linear_input=given,
        )

    def _code_rows(self, start: int, stop: int) -> Array:
        columns = stored_array(self._codes, 0, self._codes.shape[0])[:, start:stop]
        return unpack_words(np.ascontiguousarray(columns.T), self._scheme.bits, self._width)

    def _scale_rows(self, start: int, stop: int) -> Array:
        if self._scheme.symmetric:
            self._need_middle(start, stop)
        columns = stored_array(self._scales, 0, self._groups)[:, start:stop]
        return widen(np.ascontiguousarray(columns.T))

    def _zero_points(self, start: int, stop: int, offset: int) -> Array:
        """Return zero points uint8 `[rows, groups]`: stored ones plus `offset`, added on whole words."""
        bits, step = self._scheme.bits, self._step
        first, last = start // step, -(-stop // step)
        size = len(self._one)
        stored = stored_array(self._zeros, 0, self._groups)[:, first * size : last * size]
        words = np.ascontiguousarray(stored).view(np.uint32)
        if offset and bits != 3:
            words = words + np.tile(self._one, last - first)
        fields = unpack_words(words, bits, (last - first) * step)
        if offset and bits == 3:  # fields straddle words, and the tool subtracts from each by itself
            fields = (fields + np.uint8(offset)) & np.uint8(7)
        return np.ascontiguousarray(fields[:, start - first * step : stop - first * step].T)

    def _need_middle(self, start: int, stop: int) -> None:
        """Raise CheckpointError unless the stored zero points of symmetric weights are the middle code."""
        middle = 1 << (self._scheme.bits - 1)
        if not any((self._zero_points(start, stop, offset) == middle).all() for offset in self._config.offsets):
            raise CheckpointError(
                f"The config of the {LAYOUT} checkpoint says that weights are symmetric, but {self._module}.qzeros has "
                f"other zero points than {middle}: they don't belong together, take another copy."
            )

    def _need_whole_zeros(self) -> None:
        """Raise UnsupportedFormatError where a zero point of 0 has overwritten others."""
        if not self._config.offsets[0] or self._config.trusted:
            return
        words = stored_array(self._zeros, 0, self._groups).view(np.uint32)
        last = words[:, len(self._one) - 1 :: len(self._one)]
        shift = np.uint32(WORD - 2 * self._scheme.bits)
        if (last >> shift == np.uint32((1 << 2 * self._scheme.bits) - 1)).any():
            raise UnsupportedFormatError(
                f"{self._module}.qzeros holds a zero point of 0 in version 1 of the format, where tools other than "
                "GPTQModel overwrite the ones beside it: quantize the model again in the format gptq_v2."
            )

    def _order(self) -> Array | None:
        """Return the columns sorted by group, or None where they are in that order already."""
        group, width = self._scheme.group or self._width, self._width
        plain = np.arange(width) // group
        if self._index is None:
            return None
        need_shape(self._index, (width,))
        index = self._index.read().astype(np.int64)
        if np.array_equal(index, plain) or (not self._scheme.ordered and not index.any()):
            return None
        name = self._index.name
        if not self._scheme.ordered:
            raise CheckpointError(
                f"The config of the {LAYOUT} checkpoint has no activation order (desc_act), but {name} has one: "
                "they don't belong together, take another copy."
            )
        wanted = np.bincount(plain, minlength=self._groups)
        if (
            index.min() < 0
            or index.max() >= self._groups
            or not np.array_equal(np.bincount(index, minlength=self._groups), wanted)
        ):
            raise CheckpointError(
                f"{name} does not put {group} columns into each of {self._groups} groups: the checkpoint is damaged, "
                "take another copy."
            )
        return np.argsort(index, kind="stable").astype(np.int64)
