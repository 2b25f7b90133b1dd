"""What the machine under an inference server did while it served."""
