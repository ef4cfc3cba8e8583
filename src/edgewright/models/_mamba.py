"""What families with Mamba-2 layers beside attention share: the mixer's keys, and the mixer they make."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewright import nn
from edgewright.models._config import DecoderConfig, because

#: The names of kinds of layers, older ones too, and what they are.
MAMBA_OR_ATTENTION = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


@dataclass(frozen=True, kw_only=True)
class MambaConfig(DecoderConfig):
    """A decoder with Mamba-2 mixers. The convolution has the MLP's activation, so that is SiLU."""

    num_key_value_heads: int | None = 8
    rms_norm_eps: float = 1e-5
    mamba_n_heads: int = 128
    mamba_d_head: int | str = "auto"
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: list[float] | None = None
    attention_bias: bool = False

    absent: typing.ClassVar[frozenset[str]] = frozenset({"hidden_act"})
    fixed: typing.ClassVar[Mapping[str, Any]] = {"hidden_act": "silu"}
    no_effect: typing.ClassVar[Mapping[str, str]] = {
        **because("how transformers computes", "mamba_chunk_size use_mamba_kernels"),
        "num_logits_to_keep": "which logits transformers computes",
        "z_loss_coefficient": "training only",
        "router_aux_loss_coef": "training only",
    }

    @property
    def mamba_width(self) -> int:
        """Width of all heads of a mixer."""
        return self.mamba_expand * self.hidden_size

    @property
    def mamba_head_size(self) -> int:
        """Width of a mixer's head."""
        return self.mamba_d_head if isinstance(self.mamba_d_head, int) else self.mamba_width // self.mamba_n_heads

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        found = super().problems() or step_limit_problems(self.time_step_limit)
        if self.mamba_d_head != "auto" and not isinstance(self.mamba_d_head, int):
            found.append(f"mamba_d_head is {self.mamba_d_head!r}")
        elif self.mamba_n_heads * self.mamba_head_size != self.mamba_width:
            found.append(f"{self.mamba_n_heads} heads of {self.mamba_head_size} aren't the mixer's {self.mamba_width}")
        if self.mamba_n_heads % self.mamba_n_groups:
            found.append(f"{self.mamba_n_heads} mamba heads don't share {self.mamba_n_groups} groups evenly")
        return found

    def mamba(self, **options: Any) -> nn.Mamba2:
        """Return a mixer; `options` add to those the keys give or replace them."""
        given: dict[str, Any] = {
            "heads": self.mamba_n_heads,
            "head_dim": self.mamba_head_size,
            "state_size": self.mamba_d_state,
            "groups": self.mamba_n_groups,
            "kernel": self.mamba_d_conv,
            "epsilon": self.rms_norm_eps,
            "bias": self.mamba_proj_bias,
            "out_bias": self.mamba_proj_bias,
            "conv_bias": self.mamba_conv_bias,
            "step_limit": step_limit(self.time_step_limit),
        }
        return nn.Mamba2(self.hidden_size, **{**given, **options})


def step_limit(value: Sequence[float] | None) -> tuple[float, float]:
    """Return the bounds of a step."""
    low, high = value or (0.0, math.inf)
    return low, high


def step_limit_problems(value: Sequence[float] | None) -> list[str]:
    """Return what is wrong with a `time_step_limit`."""
    fine = value is None or (len(value) == 2 and 0 <= value[0] < value[1])
    return [] if fine else [f"time_step_limit is {value}"]
