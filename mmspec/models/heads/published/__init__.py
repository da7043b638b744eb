"""Networks of published draft heads, under their published tensor names."""
