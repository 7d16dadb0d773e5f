"""Clusters of any scheduler that torchx knows."""
