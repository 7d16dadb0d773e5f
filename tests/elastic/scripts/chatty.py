"""Print numbered lines, about 1.2 MB in three seconds."""

import time

for number in range(300):
    print("\n".join(f"{number:05d}-{line:02d} {'x' * 190}" for line in range(20)), flush=True)
    time.sleep(0.01)
print("the end", flush=True)
time.sleep(0.8)
