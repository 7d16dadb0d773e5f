"""What to do about a job: decide.py lists the rules, and all that they look at is a Situation."""
