"""The strategies in TensorFlow: one file each, around the training loop in `training`."""
