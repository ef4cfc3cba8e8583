"""Pages and figures to look at, made from saved results.

`template` and `charts` stand on nothing, so that every part's page can use them; the rest reads run folders.
"""
