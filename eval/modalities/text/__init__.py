"""Conversations in text: answered turn by turn, and timed beside transformers' own generation."""
