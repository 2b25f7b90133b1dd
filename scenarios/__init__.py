"""Questions about a deployment: plans to run and a judgement of their results."""
