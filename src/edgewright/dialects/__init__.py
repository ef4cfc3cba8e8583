"""How a target spells a graph: one file per dialect, each a function from a stage to a lowered stage."""
