"""The plain loop against transformers' `generate`, on models of published sizes."""
