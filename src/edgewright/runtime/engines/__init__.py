"""The kinds of engines, one file each; `edgewright.runtime.engine` opens them."""
