"""Short forms of error messages."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message, where long reports state the cause."""
    return str(error).strip().rpartition("\n")[2].strip()
