"""Reports processes that the kernel killed because the machine ran out of memory."""
