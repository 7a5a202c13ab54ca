"""Exported policies and their worlds: read a file, rebuild its environment, act; python -m drqv2.play."""
