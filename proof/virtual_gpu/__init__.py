"""Run torch's CUDA code and ProcessGroupNCCL on a machine without a GPU, with device times by rule.

See README.md in this folder. `build` makes the libraries, `rig` has the functions that tests need.
"""
