"""CDI devices: what files of vendors add to a container."""
