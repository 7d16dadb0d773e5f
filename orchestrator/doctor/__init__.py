"""Check the service and its clusters. Each finding says what to do next."""
