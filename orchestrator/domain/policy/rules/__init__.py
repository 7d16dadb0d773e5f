"""The rules of the policy, by what they are about. Their order stands in policy/decide.py."""
