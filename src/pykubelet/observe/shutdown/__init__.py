"""Graceful node shutdown: delays a shutdown of the machine, and ends the pods by priority."""
