"""What `pykubelet pods` and `pykubelet explain` ask for: waits, stories and the state of the node, as plain documents."""
