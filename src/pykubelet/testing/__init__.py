"""Doubles for tests and benchmarks. The product never imports them."""
