"""How many files the process may have open: each connection is one."""

import resource

from sentiment.observability.logs import logger

# Below, a crowd of clients soon finds no place; what containers are given is mostly 1,048,576, or 524,288 once it is asked for.
FEW = 4096


def raise_limit() -> int:
    """Take all that the system grants; returns that. Processes that are started later have it too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError) as error:
            logger().warning("files_limit_not_raised", limit=soft, granted=hard, reason=str(error))
    if soft != resource.RLIM_INFINITY and soft < FEW:
        logger().warning("few_files", limit=soft, reason=f"each connection is one; {FEW} or more are wanted")
    return soft
