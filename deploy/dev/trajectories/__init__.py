"""Loss curves of trainings that were killed and went on elsewhere, beside those that nobody disturbed."""
