"""Draft-length policies compared by simulation, on recorded acceptances."""
