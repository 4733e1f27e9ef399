"""The training benchmark: how gradients are synchronised, what that costs a step, and whether it trains the same model.

The rest of the suite works without this package; only `cli` imports it. Terms and formulas: docs/training.md.
"""
