"""Experts that a call touches, and what that costs, as MoESD predicts it (Huang et al. 2025)."""
