"""Why a job stands as it does, and what may help."""
