"""Chaos tests of exactly-once streams: kills at every step and at random, for every source and state store, and audits.

python -m chaos --seed 1 --kills 200
"""
