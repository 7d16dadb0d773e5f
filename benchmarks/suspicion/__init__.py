"""False suspicions of the detector of heartbeats. See __main__.py."""
