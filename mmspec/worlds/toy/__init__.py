"""Small worlds whose laws are known in closed form."""
