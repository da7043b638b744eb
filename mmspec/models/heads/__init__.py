"""Draft heads over a frozen vision-language model, one method a file."""
