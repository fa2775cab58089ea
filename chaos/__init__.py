"""Chaos: exactly-once streams over every source and state store, killed at every step and at random, and audited.

python -m chaos --seed 1 --kills 200
"""
