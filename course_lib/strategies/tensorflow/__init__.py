"""The strategies in TensorFlow: one page each.

All share `models` and `steps`; those that average gradients share `training`, and those with
parameter servers `server`.
"""
