"""The kubelet's iptables chains on the host, which other programs expect."""
