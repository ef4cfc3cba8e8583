"""Compilers of other vendors that are programs: a stage is handed to a command, its product and its words are kept.

What there is to know of a program stands in a tool file (`tool`), of which some ship; users write their own.
"""
