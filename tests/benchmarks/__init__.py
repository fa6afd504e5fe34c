"""Measurements: `make bench`, or `python -m tests.benchmarks [names...] [--quick] [--repeat N]`.

Every figure stands beside a peer or a limit that was measured in the same run, turn by turn, and is
given with its spread. No test asserts any of them.
"""
