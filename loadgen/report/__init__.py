"""Views of the analysis: terminal, summary.json, CSV."""
