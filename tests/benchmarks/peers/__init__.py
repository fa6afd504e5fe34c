"""What Lockstep is measured against: short plain scripts that know nothing of it, written as the
frameworks' own guides say.
"""
