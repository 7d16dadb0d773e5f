"""What is removed when it is no longer needed: old records, run directories, files of deleted jobs."""
