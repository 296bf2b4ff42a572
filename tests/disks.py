"""A file system of the test's own, in an image file: to read raw, and to cut the power of."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack

import pytest

MIB = 1 << 20
SHUTDOWN = 0x8004587D
"""FS_IOC_SHUTDOWN of ext4, XFS and others."""

FREEZE, THAW = 0xC0045877, 0xC0045878
"""FIFREEZE and FITHAW."""

WITHOUT_FLUSHING = pack("I", 2)
"""Not even the journal: what no fsync has made durable is lost."""


class Disk:
    """An ext4 file system in `image`, mounted at `at` between `mounted` and its end."""

    def __init__(self, folder: Path, size: int) -> None:
        self.image = folder / "disk.img"
        self.at = folder / "disk"
        self.at.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size)
        _run("mkfs.ext4", "-q", "-F", str(self.image))

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        _run("mount", "-o", "loop", str(self.image), str(self.at))
        try:
            yield self.at
        finally:
            _run("umount", str(self.at))

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Whoever writes or flushes waits until it is over."""
        root = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(root, FREEZE, 0)
            try:
                yield
            finally:
                fcntl.ioctl(root, THAW, 0)
        finally:
            os.close(root)

    def cut_the_power(self) -> None:
        """Everything fails from here on; after the next mount, what was not flushed is gone."""
        root = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(root, SHUTDOWN, WITHOUT_FLUSHING)
        finally:
            os.close(root)


def disk_of(folder: Path, size: int) -> Disk:
    """A disk, or the reason why this machine has none."""
    if os.geteuid() != 0:
        pytest.skip("mounting a disk image takes root")
    if not all(map(shutil.which, ("mkfs.ext4", "mount", "umount"))):
        pytest.skip("there is no mkfs.ext4 or no mount here")
    disk = Disk(folder, size)
    try:
        with disk.mounted():
            disk.cut_the_power()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine mounts no image, or shuts none down: {error}")
    return disk


@contextmanager
def memory_of(folder: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes in memory, or the reason why this machine has none."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a tmpfs takes root and mount")
    at = folder / "memory"
    at.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine mounts no tmpfs: {error}")
    try:
        yield at
    finally:
        _run("umount", str(at))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
