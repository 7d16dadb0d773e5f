"""Run a command on this machine with the programs of another Debian release. As root, with the package debootstrap.

    python -m deploy.dev.debian RELEASE [--packages NAME...] -- COMMAND...

The release is installed once into a folder, with the packages. The command sees this machine's /proc, /dev, /sys and
/tmp, and the top-level folders that hold home, the working directory and this Python (which must not be below /usr).
All other programs and libraries are the release's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

_MIRROR = "http://deb.debian.org/debian"
# Libraries that this machine's Python loads, and what the tests need.
_FOR_PYTHON = "ca-certificates,libbz2-1.0,libexpat1,libffi8,libgomp1,liblzma5,libsqlite3-0,procps,zlib1g"
_SHARED = ("/proc", "/dev", "/sys", "/tmp")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DONE = ".complete"

# The mounts are in a namespace of their own, so they end with the command. `ip netns` needs a root that is a mount.
_ENTER = """\
set -e
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
for folder in $1; do mkdir -p "$root$folder"; mount --rbind "$folder" "$root$folder"; done
shift
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/run/netns"
exec chroot "$root" "$@"
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.dev.debian", description=__doc__)
    parser.add_argument("release", help="such as trixie")
    parser.add_argument("--packages", nargs="*", default=[])
    parser.add_argument("--folder", type=Path, help="default: ~/.cache/debian/RELEASE")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    folder: Path = given.folder or Path.home() / ".cache" / "debian" / given.release
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("this needs root and debootstrap (apt-get install debootstrap)")
    install(given.release, given.packages, folder)
    sys.exit(run(folder, given.command))


def install(release: str, packages: list[str], folder: Path) -> None:
    """Install the release, unless an earlier call has. For other packages, use a new folder.

    Raises CalledProcessError, TimeoutExpired.
    """
    if (folder / _DONE).exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = ",".join([_FOR_PYTHON, *packages])
    # The script of sid also installs releases that this debootstrap does not know.
    command = ["debootstrap", "--variant=minbase", f"--include={names}", release, str(folder), _MIRROR, "sid"]
    subprocess.run(command, check=True, timeout=900, stdout=subprocess.DEVNULL)
    shutil.copy("/etc/hosts", folder / "etc" / "hosts")
    (folder / _DONE).touch()


def run(folder: Path, command: list[str]) -> int:
    """Return the command's exit status."""
    here = Path.cwd()
    roots = {f"/{path.parts[1]}" for path in (here, Path.home(), Path(sys.base_prefix))} - {"/usr"}
    shared = " ".join([*_SHARED, *sorted(roots - set(_SHARED))])
    inside = ["env", "-C", str(here), f"PATH={_PATH}", f"HOME={Path.home()}", *command]
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", _ENTER, "bash", str(folder), shared, *inside], check=False
    ).returncode


if __name__ == "__main__":
    main()
