"""Where pods come from when nobody else says: manifest files and a manifest URL.

Each source keeps watch on its own, and posts its whole set of pods whenever that set changes (`SourceChanged`); merging
is the roster's. The first post of a source says that it is ready.
"""
