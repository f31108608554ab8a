"""Test doubles for tests and benchmarks. The product never imports them."""
