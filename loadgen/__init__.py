"""Ask an inference endpoint, write down what happened, say what it means."""

__version__ = "0.1.0"
