"""An example of a target that another package brings to edgewright."""
