"""Access to the machine: files, mounts, cgroups, /proc, inotify, programs."""
