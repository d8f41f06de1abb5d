"""Joints to the frameworks people train with; each module needs its framework installed."""
