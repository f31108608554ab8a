"""Block devices: their size and users, the file systems on them, loop devices."""
