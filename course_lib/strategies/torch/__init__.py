"""The strategies in PyTorch, a page each; they share `steps`, `exchange` and `server`."""
