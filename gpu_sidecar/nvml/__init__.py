"""NVML read truthfully: what each call costs, when it refreshes, and what it does when the driver fails."""
