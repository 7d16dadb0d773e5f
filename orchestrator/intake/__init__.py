"""The one door for what agents tell, over HTTP or through the run directory."""
