"""The one error that means "the input is wrong", shown to users as a single line."""


class InputError(ValueError):
    """Bad input: what is wrong and what to do, in one line. The command line exits with code 2."""
