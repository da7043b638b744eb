"""Jacobi windows: the target drafts for itself."""
