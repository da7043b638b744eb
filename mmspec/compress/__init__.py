"""Training-free compression of visual tokens, one method a file, by name in `registry`."""
