"""A virtual machine for the tests that need a whole Debian 12: systemd as init, cgroup v2 alone, PSI, swap, huge pages, NUMA.

`make test-vm` builds its disk image, boots it with qemu under plain emulation (no KVM), copies the checkout in, runs the tests
of `tests/vm` inside, and copies the results out. Standard library only, as in `testbed`.
"""
