"""A private network for each run: hosts, links of a given speed, and counters of what goes over
them.
"""
