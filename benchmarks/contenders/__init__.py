"""One module per engine; each is imported only by worker.py, inside that engine's own environment."""
