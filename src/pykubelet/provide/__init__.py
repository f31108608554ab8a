"""Supplies what pods need before their containers run. Knows nothing of pod workers, which get it through `act/pods/needs.py`."""
