"""The limits of tests that compare runs with PyTorch, transformers or runs of one rank."""
import os


def limit(value):
    """`value`, or $TRAINCTL_TOLERANCE if that is larger: a GPU adds in another order than a CPU (gpu/scripts/oracles.sh)."""
    return max(value, float(os.environ.get("TRAINCTL_TOLERANCE", 0)))
