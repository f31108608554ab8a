"""Volumes of pods: desired, actual and uncertain mounts. Public: `loop.Volumes`, `subpath.Subpaths`."""
