"""Files, directory trees, mounts and inotify."""
