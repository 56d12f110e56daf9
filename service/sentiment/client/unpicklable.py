"""The error for objects that hold connections, threads or a loaded model, and so cannot be pickled or copied."""


def unpicklable(owner: object, arguments: str) -> TypeError:
    """The error of an attempt. ``arguments``: of another one like it."""
    name = type(owner).__name__
    return TypeError(f"{name} cannot be pickled or copied; make one in each process: {name}({arguments})")
