"""Several tasks on one accelerator: who has it next, in real time with threads and in virtual time without.

Nothing here loads an engine; the modules are imported one by one.
"""
