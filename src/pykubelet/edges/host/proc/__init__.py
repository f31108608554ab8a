"""What the kernel reports and takes outside of cgroups: /proc, sysctls, network interfaces, OOM scores."""
