"""The one error that means "the input is wrong", shown to users as a single line."""


class InputError(ValueError):
    """Bad input: what is wrong and what to do, in one line. The command line exits with code 2."""


def absent(what: str, extra: str) -> InputError:
    """The error of something that only an extra of the package installs."""
    return InputError(f"{what}; in a clone of mmspec: pip install -e '.[{extra}]'")


def reason(error: BaseException) -> str:
    """Say in one line why something failed; of the system's errors without number and path."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0]
