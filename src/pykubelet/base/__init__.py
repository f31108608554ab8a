"""The lowest layer: no I/O, imports nothing of the layers above."""
