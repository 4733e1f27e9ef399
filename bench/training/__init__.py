"""The training benchmark: what each way to synchronise gradients costs a step, and whether the model stays the same.

The rest of the suite works without this package; only `cli` imports it. Terms and formulas: docs/training.md.
"""
