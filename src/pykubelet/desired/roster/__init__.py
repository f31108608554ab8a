"""The desired pods of this node: merged from all sources, and admitted one by one. Writes the cell `Roster`."""
