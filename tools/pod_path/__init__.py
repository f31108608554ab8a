"""The way of a pod through the code, from its manifest to the start of its container."""
