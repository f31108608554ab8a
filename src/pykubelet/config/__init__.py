"""Reads, completes and validates KubeletConfiguration and flags; the result is a `Settings`."""
