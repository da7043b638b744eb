"""Judges of pictures, one a file: is what the prompt says in the picture."""
