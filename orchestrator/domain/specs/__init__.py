"""The spec of a job: the model, its parser, and the fields that are refused or have no effect."""
