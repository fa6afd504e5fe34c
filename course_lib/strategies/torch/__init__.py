"""The strategies in PyTorch, a page each. They share `steps` and `exchange`; those with parameter
servers share `server`, what workers do, and `shard`, what a ps does.
"""
