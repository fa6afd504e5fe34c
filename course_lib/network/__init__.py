"""A network of the run's own: private to it, with hosts, links of a set speed, and counters of what
goes over them.
"""
