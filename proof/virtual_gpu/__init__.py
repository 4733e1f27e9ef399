"""A virtual GPU: torch's CUDA code and ProcessGroupNCCL run on a machine without one, with device time by rule.

See README.md beside this file. `build` makes the libraries, `rig` has what a test needs.
"""
