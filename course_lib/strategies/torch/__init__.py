"""The strategies in PyTorch, a page each. They share `steps`; those with parameter
servers share `server`, what workers do, and `shard`, what a ps does.
"""
