"""Rules that route blocks between drafter and target, and their slow twins."""
