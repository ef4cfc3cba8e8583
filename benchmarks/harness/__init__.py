"""The race's own side: it starts workers, watches them and writes the tables. Standard library only."""
