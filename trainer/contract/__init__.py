"""Documents and rules that the service, agents and workers share. Pure, and standard library only.

Documents only gain fields: a reader ignores fields that it does not know, and a writer never changes the meaning of
one. Nothing here reads a file, a clock or the environment.
"""
