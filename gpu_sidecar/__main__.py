"""``python -m gpu_sidecar``."""

import sys

from gpu_sidecar.cli import main

sys.exit(main())
