"""LANTERN's rules: a token's probability is pooled with that of its nearest codes."""
