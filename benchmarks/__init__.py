"""Side by side with peers and with the floor; never part of the tests."""
