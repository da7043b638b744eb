"""The demo: every modality plainly and speculatively in a browser, and the frontier of a report."""
