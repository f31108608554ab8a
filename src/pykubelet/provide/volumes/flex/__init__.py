"""Volumes of flexVolume drivers: plans and call-outs."""
