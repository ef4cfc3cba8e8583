"""The building blocks model families are made of."""

from edgewright.nn.ada_rms_norm import AdaRMSNorm
from edgewright.nn.attention import Attention
from edgewright.nn.cache import Cache, KVShape
from edgewright.nn.causal_lm import CausalLM, Decoder
from edgewright.nn.decoder_layer import POST_NORM, PRE_NORM, SANDWICH, DecoderLayer, LayerNames
from edgewright.nn.gated_delta_net import GatedDeltaNet
from edgewright.nn.joint_layer import JointLayer
from edgewright.nn.layers import MLP, Embedding, GatedMLP, LayerNorm, Linear, RMSNorm, scaled
from edgewright.nn.mamba2 import Mamba2
from edgewright.nn.mixed_attention import Mask, MixedAttention, Prefix
from edgewright.nn.module import Module, Parameter
from edgewright.nn.moe import Experts, MoE, Router
from edgewright.nn.rope import RopeTable, apply_rope
from edgewright.nn.short_conv import ShortConv
from edgewright.nn.siglip import SiglipTower
from edgewright.nn.usual import attention, causal_lm, decoder_layer

__all__ = [
    "MLP",
    "POST_NORM",
    "PRE_NORM",
    "SANDWICH",
    "AdaRMSNorm",
    "Attention",
    "Cache",
    "CausalLM",
    "Decoder",
    "DecoderLayer",
    "Embedding",
    "Experts",
    "GatedDeltaNet",
    "GatedMLP",
    "JointLayer",
    "KVShape",
    "LayerNames",
    "LayerNorm",
    "Linear",
    "Mamba2",
    "Mask",
    "MixedAttention",
    "MoE",
    "Module",
    "Parameter",
    "Prefix",
    "RMSNorm",
    "RopeTable",
    "Router",
    "ShortConv",
    "SiglipTower",
    "apply_rope",
    "attention",
    "causal_lm",
    "decoder_layer",
    "scaled",
]
