"""The process's limit of open files. Each connection takes one."""

import resource

from sentiment.observability.logs import logger

# With fewer, many clients cannot connect. Containers mostly have a hard limit of 1,048,576 or 524,288.
FEW = 4096
# The parts of the limit that connections may take. The rest is for models, logs and the process's own sockets.
GRPC_SHARE, HTTP_SHARE, PROBES_SHARE = 0.65, 0.25, 0.02
# A probe has a connection for a moment; meshes and load balancers keep some open.
PROBES_MAX = 1024
# No more HTTP connections than programs and people need. An idle one takes 6 KB of memory, one whose client sends ahead of answers 120 KB.
# With TLS each takes 310 KB from its start on: asyncio gives it a buffer of 256 KiB.
HTTP_MAX, HTTPS_MAX = 4096, 512


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


def grpc_connections() -> int:
    """How many gRPC connections a process may have; 0 if files are not limited."""
    return _part(GRPC_SHARE)


def http_connections(tls: bool) -> int:
    """How many HTTP connections a process may have."""
    most = HTTPS_MAX if tls else HTTP_MAX
    return min(most, _part(HTTP_SHARE) or most)


def probe_connections() -> int:
    """How many connections a process may have on its health port."""
    return min(PROBES_MAX, _part(PROBES_SHARE) or PROBES_MAX)


def _part(share: float) -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 0 if limit == resource.RLIM_INFINITY else max(1, int(share * limit))
