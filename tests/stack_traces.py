"""Lines of Java stack traces: texts that no model of sentiment was measured on."""

import random

PACKAGES = (
    *("java.util", "java.lang", "sun.reflect", "io.netty.channel", "com.example.orders", "com.example.billing"),
    *("org.springframework.web.servlet", "org.hibernate.engine.jdbc.spi", "com.fasterxml.jackson.databind", "org.postgresql.jdbc"),
)
CLASSES = (
    *("AbstractChannelHandlerContext", "OrderService", "HikariPool", "NioEndpoint", "DispatcherServlet", "SqlExceptionHelper"),
    *("BeanDeserializer", "ThreadPoolExecutor", "InvoiceRepository", "PgPreparedStatement", "ArrayList", "HashMap"),
)
METHODS = (
    *("invokeChannelRead", "doGet", "getConnection", "processRequest", "execute", "deserialize", "run", "findByCustomerId"),
    *("executeQuery", "invoke", "rangeCheck", "convert", "<init>"),
)
ERRORS = (
    "java.lang.NullPointerException",
    "java.sql.SQLTransientConnectionException: HikariPool-1 - Connection is not available, request timed out after 30000ms.",
    "java.lang.IllegalStateException: Cannot call sendError() after the response has been committed",
    "java.lang.IndexOutOfBoundsException: Index 5 out of bounds for length 3",
    "org.hibernate.exception.ConstraintViolationException: could not execute statement",
    "java.util.concurrent.TimeoutException: null",
    "java.io.IOException: Broken pipe",
)


def stack_traces(count: int, seed: int = 1) -> list[str]:
    """``count`` lines."""
    rng = random.Random(seed)

    def line() -> str:
        kind = rng.random()
        if kind < 0.2:
            return ("Caused by: " if kind < 0.08 else "") + rng.choice(ERRORS)
        if kind < 0.24:
            return f"... {rng.randint(3, 60)} more"
        place = f"{rng.choice(PACKAGES)}.{rng.choice(CLASSES)}.{rng.choice(METHODS)}"
        return f"at {place}({rng.choice(CLASSES)}.java:{rng.randint(20, 2400)})"

    return [line() for _ in range(count)]
