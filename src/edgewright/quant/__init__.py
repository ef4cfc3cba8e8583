"""How numbers are stored: weight formats, recipes, and the pass that applies them."""

from edgewright.quant.apply import quantize_stage
from edgewright.quant.formats import FloatFormat, Format, IntFormat
from edgewright.quant.recipe import Recipe, builtin_names, load_recipe, parse_recipe

__all__ = [
    "FloatFormat",
    "Format",
    "IntFormat",
    "Recipe",
    "builtin_names",
    "load_recipe",
    "parse_recipe",
    "quantize_stage",
]
