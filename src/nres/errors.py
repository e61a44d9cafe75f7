"""What errors say, in short."""


def first_line(error: BaseException) -> str:
    """What went wrong, without the rest of a long report."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def last_line(error: BaseException) -> str:
    """The end of a report that begins with what everybody knows."""
    return str(error).strip().rpartition("\n")[2].strip()
