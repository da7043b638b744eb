"""Text about pictures, and plain text."""
