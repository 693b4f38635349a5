"""Random damage, command lines and data, within a time: ``python -m tests.fuzz --seconds 120``.

Every case is drawn from a seed of its own. It passes if the library does what it was asked or
refuses with an error of its own; anything else is printed with the seed that brings it back.
"""
