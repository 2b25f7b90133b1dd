"""In how many of 100 seeds does the known critical rate lie in the search's stated 95 % interval?

    python -m tests.bench.search_power [mm1|mm1-mean|engine|all] [SEEDS]

M/M/1: response times are exponential of rate mu - lambda, so that "p95 within b" is kept up to the rate
mu - ln(20) / b exactly. Engine model in virtual time: TTFT under one seat is that of a queue whose service time
is what one request takes alone; its critical rate is found by brute force, 40 runs of 20,000 requests at each of
nine rates.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from loadgen.analysis.keeping import tally
from loadgen.search import Answer, Evidence, Question, search
