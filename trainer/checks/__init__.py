"""Programs to run before a job: preflight, drill, roll call, memory advice."""
