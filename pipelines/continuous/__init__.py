"""Text or class to image, of continuous tokens."""
