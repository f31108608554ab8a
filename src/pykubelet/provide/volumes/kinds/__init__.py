"""One module for each volume kind. Each exports `KIND`, a `VolumeKind`; `registry.py` finds it."""
