"""Volumes on disks: iscsi and fc, the mounts of devices, and maps of block devices for pods."""
