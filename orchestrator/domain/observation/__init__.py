"""What is seen of attempts and nodes, three-valued, and what follows: a hang, a first cause."""
