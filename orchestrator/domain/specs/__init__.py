"""What a person may ask for: the spec, how a document becomes one, and what is refused or has no effect."""
