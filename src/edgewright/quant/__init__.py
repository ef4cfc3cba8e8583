"""How numbers are stored: weight formats, recipes, and the pass that applies them."""
