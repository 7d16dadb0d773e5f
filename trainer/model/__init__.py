"""The bundled decoder, and the initial values of any model."""
