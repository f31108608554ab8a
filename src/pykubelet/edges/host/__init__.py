"""The machine below the agent: files, mounts, cgroups, /proc, inotify, programs. The only raw file-system code here."""
