"""The sources of pods: manifest files, a manifest URL and the API server.

Each source watches independently, and posts its whole set of pods (`SourceChanged`) whenever the set changes. The roster
merges the sets. The first known set of a source marks it as ready.
"""
