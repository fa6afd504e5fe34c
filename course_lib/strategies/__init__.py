"""Strategies: ways to train one model on many devices. `catalog` states what each one is; one file
a strategy and framework is how it is done.
"""
