"""What a lone node needs of a control plane, as pure functions from objects to changes."""
