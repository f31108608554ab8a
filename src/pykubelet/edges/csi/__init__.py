"""Calls to drivers of the Container Storage Interface (CSI)."""
