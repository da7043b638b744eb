"""Learning in use (OSD, Liu et al. 2024): drafts over answers as the domain changes."""
