"""The vocabulary that all floors share: ids, snapshots, events, reasons, paths. Pure."""
