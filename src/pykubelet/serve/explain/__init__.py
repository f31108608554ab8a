"""The answers of `pykubelet pods` and `pykubelet explain`."""
