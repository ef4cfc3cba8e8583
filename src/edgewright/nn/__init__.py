"""The building blocks model families are made of."""

from edgewright.nn.attention import Attention
from edgewright.nn.causal_lm import CausalLM, Decoder, DecoderLayer, causal_lm, decoder_layer
from edgewright.nn.layers import Embedding, GatedMLP, Linear, RMSNorm
from edgewright.nn.module import Module, Parameter
from edgewright.nn.rope import RopeTable

__all__ = [
    "Attention",
    "CausalLM",
    "Decoder",
    "DecoderLayer",
    "Embedding",
    "GatedMLP",
    "Linear",
    "Module",
    "Parameter",
    "RMSNorm",
    "RopeTable",
    "causal_lm",
    "decoder_layer",
]
