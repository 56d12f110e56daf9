"""The process's limit of open files. Each connection takes one."""

import resource

from sentiment.observability.logs import logger

# With fewer, many clients cannot connect. Containers mostly have a hard limit of 1,048,576 or 524,288.
FEW = 4096


def part_of_files(share: float) -> int:
    """How many connections may take so much of the process's open files; 0 if files are not limited."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0 if limit == resource.RLIM_INFINITY else int(share * limit)


def raise_limit() -> int:
    """Raise the soft limit to the hard one; returns the limit. Processes started later inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError) as error:
            logger().warning("files_limit_not_raised", limit=soft, granted=hard, reason=str(error))
    if soft != resource.RLIM_INFINITY and soft < FEW:
        logger().warning("low_file_limit", limit=soft, reason=f"each connection takes one file; allow at least {FEW} (ulimit -n)")
    return soft
