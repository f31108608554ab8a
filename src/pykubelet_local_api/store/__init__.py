"""The objects: one SQLite file, one writer, and the history that watches read."""
