"""Objectives of draft heads compared: equal steps over the same lessons, judged by acceptance."""
