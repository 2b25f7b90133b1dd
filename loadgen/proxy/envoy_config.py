"""Envoy's configuration as plain data: fronts on loopback, streams unbuffered, limits by option, time points out.

What is left ``None`` stays Envoy's default, and those defaults are traps for streams: routes end after 15 s,
headers may have 60 KiB and 100 fields, a cluster takes 1,024 requests at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadgen.errors import UsageError
from loadgen.proxy.time_points import (
    END_POINTS_HEADER,
    HEAD_POINTS,
    LATE_POINTS,
    POINTS_HEADER,
    header_format,
    log_fields,
)

Json = dict[str, Any]
TYPES = "type.googleapis.com/envoy.extensions"
HCM = f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"
FRONT, GRPC_FRONT = "http", "grpc"
OGHTTP2 = "envoy.reloadable_features.http2_use_oghttp2"
OVERWRITE = "OVERWRITE_IF_EXISTS_OR_ADD"
UPSTREAM_IDLE_S = 4.0
"""Shorter than servers keep an idle connection (uvicorn: 5 s): else Envoy sends into one that is being closed."""

FACTS = {
    "listener": "%FILTER_CHAIN_NAME%",
    "path": "%REQ(:PATH)%",
    "protocol": "%PROTOCOL%",
    "upstream_protocol": "%UPSTREAM_PROTOCOL%",
    "code": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "grpc_status": "%GRPC_STATUS%",
    "connection": "%CONNECTION_ID%",
    "upstream_connection": "%UPSTREAM_CONNECTION_ID%",
    "upstream_host": "%UPSTREAM_HOST%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "request_headers_bytes": "%REQUEST_HEADERS_BYTES%",
    "received_header_bytes": "%DOWNSTREAM_HEADER_BYTES_RECEIVED%",
    "received_body_bytes": "%BYTES_RECEIVED%",
    "sent_header_bytes": "%UPSTREAM_HEADER_BYTES_SENT%",
}
"""What the access log says of a request beside its time points."""


@dataclass(frozen=True)
class Limits:
    """Envoy's limits; ``None``: its own default. The values here are what a load test needs."""

    route_timeout_s: float | None = 0
    stream_idle_timeout_s: float | None = 3600
    max_connection_duration_s: float | None = None
    drain_timeout_s: float | None = None
    max_request_headers_kb: int | None = 1024
    max_headers_count: int | None = 1000
    max_requests: int | None = 1_000_000
    oghttp2: bool | None = True


ENVOY_DEFAULTS = Limits(None, None, None, None, None, None, None, None)


@dataclass(frozen=True)
class EnvoyOptions:
    """What to put Envoy in front of, and how. URLs: ``http://HOST:PORT``, ``https://…``, ``unix:PATH``; of gRPC
    backends ``grpc://HOST:PORT``. ``listen``: ``HOST:PORT`` (port 0: a free one) or ``unix:PATH``.
    ``filters``: further HTTP filters before the router, in Envoy's own form."""

    upstreams: tuple[str, ...] = ()
    grpc_upstreams: tuple[str, ...] = ()
    listen: str = "127.0.0.1:0"
    grpc_listen: str = "127.0.0.1:0"
    limits: Limits = Limits()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    filters: tuple[Json, ...] = ()


def envoy_config(options: EnvoyOptions, access_log: Path) -> Json:
    """The whole bootstrap configuration. Raises UsageError for addresses that are none."""
    if not options.upstreams and not options.grpc_upstreams:
        raise UsageError("envoy: name at least one --upstream or --grpc-upstream")
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UsageError("envoy: --tls-cert and --tls-key go together")
    fronts = [
        (FRONT, options.listen, options.upstreams),
        (GRPC_FRONT, options.grpc_listen, options.grpc_upstreams),
    ]
    used = [front for front in fronts if front[2]]
    return {
        "admin": {"address": _address("127.0.0.1:0")},
        "layered_runtime": {"layers": [{"name": "static", "static_layer": _runtime(options.limits)}]},
        "static_resources": {
            "listeners": [_listener(name, listen, options, access_log) for name, listen, _ in used],
            "clusters": [_cluster(name, upstreams, options.limits) for name, _, upstreams in used],
        },
    }


def _runtime(limits: Limits) -> Json:
    """nghttp2, the default codec, ends the whole connection on one header value over 65,536 bytes."""
    return {} if limits.oghttp2 is None else {OGHTTP2: limits.oghttp2}


def _seconds(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".") + "s"


def _address(text: str) -> Json:
    if text.startswith("unix:"):
        return {"pipe": {"path": text.removeprefix("unix:")}}
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"not an address: {text!r} (HOST:PORT or unix:PATH)")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


# The front.


def _listener(name: str, listen: str, options: EnvoyOptions, access_log: Path) -> Json:
    chain: Json = {
        "name": name,
        "filters": [
            {
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": _manager(name, options, access_log),
            }
        ],
    }
    if options.tls_cert is not None:
        chain["transport_socket"] = _tls(options)
    return {"name": name, "address": _address(listen), "filter_chains": [chain]}


def _manager(name: str, options: EnvoyOptions, access_log: Path) -> Json:
    limits = options.limits
    manager: Json = {
        "@type": HCM,
        "stat_prefix": name,
        "codec_type": "HTTP2" if name == GRPC_FRONT else "AUTO",
        "preserve_external_request_id": True,
        "access_log": [_access_log(access_log)],
        "route_config": _routes(name, limits),
        "http_filters": [*options.filters, _trailers(), _filter("router")],
    }
    common = {
        "max_headers_count": limits.max_headers_count,
        "max_connection_duration": _optional_seconds(limits.max_connection_duration_s),
    }
    manager |= _given(
        max_request_headers_kb=limits.max_request_headers_kb,
        stream_idle_timeout=_optional_seconds(limits.stream_idle_timeout_s),
        drain_timeout=_optional_seconds(limits.drain_timeout_s),
        common_http_protocol_options=_given(**common) or None,
    )
    return manager


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _optional_seconds(value: float | None) -> str | None:
    return None if value is None else _seconds(value)


def _filter(name: str, **config: Any) -> Json:
    kind = "".join(word.title() for word in name.split("_"))
    typed = {"@type": f"{TYPES}.filters.http.{name}.v3.{kind}", **config}
    return {"name": f"envoy.filters.http.{name}", "typed_config": typed}


def _set_header(name: str, value: str) -> Json:
    return {"header": {"key": name, "value": value}, "append_action": OVERWRITE}


def _trailers() -> Json:
    late = _set_header(END_POINTS_HEADER, header_format(LATE_POINTS, start=False))
    return _filter("header_mutation", mutations={"response_trailers_mutations": [{"append": late}]})


def _routes(name: str, limits: Limits) -> Json:
    route: Json = {"cluster": name}
    if limits.route_timeout_s is not None:
        route["timeout"] = _seconds(limits.route_timeout_s)
    host = {
        "name": "all",
        "domains": ["*"],
        "response_headers_to_add": [
            _set_header(POINTS_HEADER, header_format(HEAD_POINTS, start=True)),
            _set_header("x-served-by", "%UPSTREAM_HOST%"),
        ],
        "routes": [{"match": {"prefix": "/"}, "route": route}],
    }
    return {"name": name, "virtual_hosts": [host]}


def _access_log(path: Path) -> Json:
    typed = {
        "@type": f"{TYPES}.access_loggers.file.v3.FileAccessLog",
        "path": str(path),
        "log_format": {"json_format": {**log_fields(), **FACTS}},
    }
    return {"name": "envoy.access_loggers.file", "typed_config": typed}


def _tls(options: EnvoyOptions) -> Json:
    certificate = {
        "certificate_chain": {"filename": str(options.tls_cert)},
        "private_key": {"filename": str(options.tls_key)},
    }
    typed = {
        "@type": f"{TYPES}.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {"alpn_protocols": ["h2", "http/1.1"], "tls_certificates": [certificate]},
    }
    return {"name": "envoy.transport_sockets.tls", "typed_config": typed}


# The backends.


def _cluster(name: str, upstreams: tuple[str, ...], limits: Limits) -> Json:
    parsed = [_upstream(text) for text in upstreams]
    schemes = {scheme for scheme, _ in parsed}
    if len(schemes) > 1:
        raise UsageError(
            f"envoy: upstreams of one front must be of one kind, not {', '.join(sorted(schemes))}"
        )
    scheme = schemes.pop()
    cluster: Json = {
        "name": name,
        "type": "STATIC" if all(_is_numeric(address) for _, address in parsed) else "STRICT_DNS",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}} for _, address in parsed]}],
        },
        "typed_extension_protocol_options": {_PROTOCOLS: _protocol(grpc=name == GRPC_FRONT)},
    }
    if limits.max_requests is not None:
        most = ("max_connections", "max_pending_requests", "max_requests")
        cluster["circuit_breakers"] = {"thresholds": [dict.fromkeys(most, limits.max_requests)]}
    if scheme == "https":
        typed = {"@type": f"{TYPES}.transport_sockets.tls.v3.UpstreamTlsContext"}
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": typed}
    return cluster


_PROTOCOLS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def _protocol(*, grpc: bool) -> Json:
    return {
        "@type": f"type.googleapis.com/{_PROTOCOLS}",
        "common_http_protocol_options": {"idle_timeout": _seconds(UPSTREAM_IDLE_S)},
        "explicit_http_config": {"http2_protocol_options" if grpc else "http_protocol_options": {}},
    }


def _upstream(text: str) -> tuple[str, Json]:
    """(scheme, address); a unix socket counts as http."""
    url = urlsplit(text)
    if url.scheme == "unix" and url.path:
        return "http", _address(text)
    known = {"http": 80, "https": 443, "grpc": 80}
    try:
        if url.scheme in known and url.hostname:
            return url.scheme, _address(f"{url.hostname}:{url.port or known[url.scheme]}")
    except ValueError:
        pass
    raise UsageError(
        f"not an upstream: {text!r} (http://HOST:PORT, https://HOST:PORT, grpc://HOST:PORT, unix:PATH)"
    )


def _is_numeric(address: Json) -> bool:
    host = address.get("socket_address", {}).get("address", "0")
    return ":" in host or not any(c.isalpha() for c in host)
