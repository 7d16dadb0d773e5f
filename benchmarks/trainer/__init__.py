"""The speed of the bundled trainer, compared with hand-written loops."""
