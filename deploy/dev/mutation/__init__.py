"""Takes guards and policy rules out, one at a time, and asks the tests. Start with deploy/dev/mutate.py."""
