"""The vocabulary that all layers share: ids, snapshots, events, reasons, paths. Pure."""
