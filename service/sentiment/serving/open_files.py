"""The process's limit of open files. Each connection takes one."""

import resource

from sentiment.observability.logs import logger

# With fewer, many clients cannot connect. Containers mostly have a hard limit of 1,048,576 or 524,288.
FEW = 4096
# HTTP connections: a share of the limit, so that gRPC has the larger part, and no more than programs and people need. An idle one takes
# 6 KB of memory, one with a body that nobody reads 130 KB.
HTTP_SHARE, HTTP_MAX = 0.25, 4096


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


def http_connections(connections_max: int) -> int:
    """The maximum number of HTTP connections: as the setting says, or if that is 0, by the limit of open files."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections_max or (HTTP_MAX if soft == resource.RLIM_INFINITY else min(HTTP_MAX, max(1, int(soft * HTTP_SHARE))))
