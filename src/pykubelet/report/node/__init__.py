"""The node itself: its addresses and resources (`loop`), and whether its runtime is well (`runtime`)."""
