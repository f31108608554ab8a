"""Programs and services of the host: subprocesses, iptables, the service manager, HTTP downloads."""
