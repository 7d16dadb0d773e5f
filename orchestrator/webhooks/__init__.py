"""Who is told of events by HTTP, and the sending of it."""
