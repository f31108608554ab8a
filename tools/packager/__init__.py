"""Builds what users install: a wheel, Debian packages, a container image. The Makefile calls it.

Runs in the project's environment, because the manual page and the completion are made from the code. Nothing is written to the
checkout but the results: builds happen in a copy of it.
"""
