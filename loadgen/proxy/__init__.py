"""A real Envoy between client and endpoint: its configuration, its process, its time points, and proxies' traits."""
