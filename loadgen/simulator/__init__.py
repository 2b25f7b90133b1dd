"""The built-in OpenAI-compatible endpoint, for trying and testing without a GPU."""
