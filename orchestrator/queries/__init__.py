"""What the service tells, in the words of the wire. Changes nothing."""
