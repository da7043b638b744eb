"""Training-free compression of visual tokens, one method a file; `base` calls them by name."""
