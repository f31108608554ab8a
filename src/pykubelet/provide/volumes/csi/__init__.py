"""Volumes of CSI drivers: calls, staging, publishing, expansion, and `vol_data.json`."""
