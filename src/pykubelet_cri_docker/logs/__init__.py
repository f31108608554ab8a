"""The containers' logs: Docker's json-file logs, copied to the CRI log files that the kubelet reads."""
