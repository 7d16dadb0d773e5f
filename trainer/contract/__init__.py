"""The one language that service, agent and workers share: documents and pure rules, standard library only.

Every document is versioned by addition: a reader ignores fields that it does not know and a writer never changes the
meaning of one. Nothing in here reads a file, a clock or the environment.
"""
