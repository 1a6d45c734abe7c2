"""What every service measures about its calls, and the HTTP endpoint that Prometheus scrapes."""

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class CallMetrics:
    """Calls of one service by method and gRPC code, and their duration."""

    def __init__(self, service: str, registry: CollectorRegistry) -> None:
        self.calls = Counter(f"{service}_calls_total", "Finished gRPC calls.", ["method", "code"], registry=registry)
        self.seconds = Histogram(
            f"{service}_call_seconds",
            "Duration of gRPC calls.",
            ["method"],
            registry=registry,
            buckets=_SECONDS,
        )

    def observe(self, *, method: str, code: str, seconds: float) -> None:
        """Counts one finished call."""
        self.calls.labels(method=method, code=code).inc()
        self.seconds.labels(method=method).observe(seconds)


def serve_metrics(registry: CollectorRegistry, *, host: str, port: int) -> None:
    """Serves the registry at http://host:port/metrics from a daemon thread."""
    start_http_server(port, addr=host, registry=registry)
