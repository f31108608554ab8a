"""The surroundings of a node: images, a private containerd, a local registry, the environment, `make run` and `make down`.

Standard library only: these scripts run before the virtual environment exists. They touch nothing that is not below the
folder they are given, except what a runtime must have outside of it (a bridge, firewall chains, cgroups), which they name
after that folder and remove again.
"""
