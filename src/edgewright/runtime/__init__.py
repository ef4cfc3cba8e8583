"""The device side: running a bundle. Imports nothing from the host side."""
