"""What arrived at a service, and models of what could arrive."""
