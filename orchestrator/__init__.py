"""The service: stores jobs, launches them, watches every worker and brings training back."""
