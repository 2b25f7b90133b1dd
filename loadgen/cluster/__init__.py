"""Runs on several processes and hosts: one schedule, n shards, each row sent at most once and accounted for once.

`coordinator` (the master's) and `worker` are machines without sockets or clocks of their own: messages in,
messages out. `fabric_master` and `fabric_worker` bind them to Locust's runners, the engine and the disk.
"""
