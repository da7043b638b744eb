"""Text to video, block by block."""
