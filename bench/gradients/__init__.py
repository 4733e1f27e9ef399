"""Gradient synchronisation in training: its data, its configuration, and what can be computed without torch.

It is measured by `measure.gradients`, judged by `analyze.gradients` and shown by `present.gradients`. Terms and
formulas: docs/gradients.md.
"""
