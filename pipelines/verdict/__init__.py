"""Speculative Verdict: small experts draft, a strong model gives the verdict."""
