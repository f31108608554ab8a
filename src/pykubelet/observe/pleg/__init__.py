"""The runtime's state, as a diff of looks at it. Writes the cell `Observed`."""
