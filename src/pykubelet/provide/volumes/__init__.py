"""The volume manager: mounts and unmounts the volumes of pods. Public: `loop.Volumes`, `subpath.Subpaths`."""
