"""Sockets, kernel time stamps, timers: what touches the operating system."""
