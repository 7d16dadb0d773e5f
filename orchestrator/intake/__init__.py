"""Takes in what agents report, over HTTP or through the run directory."""
