"""One module for each volume kind. Each exports `KIND`, a `VolumeKind`; `plan.py` finds it."""
