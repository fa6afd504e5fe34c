"""The strategies in PyTorch, a page each. They share `steps` and `exchange`; those with parameter
servers share `server`, what workers do, `shard`, what a ps does, and `rpc`, how they talk.
"""
