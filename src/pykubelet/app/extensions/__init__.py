"""Loads extensions and asks them, so that none can hurt the node. Imported only if `--extension` is given."""
