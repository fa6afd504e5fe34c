"""The strategies in PyTorch: one file each, around the training loop in `training`."""
