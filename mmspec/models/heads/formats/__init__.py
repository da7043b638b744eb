"""Files of draft heads: a format a file, each reading into the networks of `published`."""
