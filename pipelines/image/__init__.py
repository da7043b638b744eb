"""Text to image."""
