"""The bundled decoder, and the first values of any model."""
