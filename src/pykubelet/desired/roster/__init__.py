"""The pods that this node has taken on: merged from all sources, admitted one by one. Writes the cell `Roster`."""
