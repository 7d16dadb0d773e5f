"""What an agent sees of workers and node: silence, stillness, stacks, deaths, memory, devices."""
