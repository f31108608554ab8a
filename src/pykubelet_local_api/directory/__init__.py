"""A folder whose files are applied: objects that leave it are deleted."""
