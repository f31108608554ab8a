"""The agent's answers: the health port, the read-only port, and the root-only socket of `pykubelet pods`.

These are plain GETs of a few paths, served by `http`, a small server of our own: it starts at once and costs no memory to
speak of, which an HTTP framework does not.
"""
