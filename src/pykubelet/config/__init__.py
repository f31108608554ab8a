"""KubeletConfiguration and flags: reading, defaults, validation, `Settings`."""
