"""What the server's machine did while users waited: client, GPU, host and engine on one time axis."""
