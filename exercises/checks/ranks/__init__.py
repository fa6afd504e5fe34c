"""Answers that run on every rank of a real cluster: what bounds them and judges what they found
(`worlds.py`), what is noted of them there (`witness.py`), which ids they read (`ids.py`), and what
a wrong mean turned out to be (`means.py`).
"""
