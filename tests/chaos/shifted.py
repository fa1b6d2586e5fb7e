"""Processes whose time of day is set while they run, and nobody else's.

A small library that is loaded before the C library shifts what CLOCK_REALTIME says by what a file holds (seconds, as
text), looked up at each reading, so that all processes of a session jump at the same moment. The kernel's own times, of
files and of processes, stay: that is what a clock looks like that was set between two looks at it."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

DAY = 86_400
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    char text[32] = {0};
    int fd = open(SHIFT_FILE, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    return size > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(which, at);
    if (code == 0 && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) at->tv_sec += shift();
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@dataclass(frozen=True)
class SetClock:
    library: Path
    file: Path

    def to(self, seconds: int) -> None:
        """Off by `seconds` from now on, for every process that was started with `program`."""
        new = self.file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self.file)

    def program(self, program: tuple[str, ...]) -> tuple[str, ...]:
        return ("env", f"LD_PRELOAD={self.library}", *program)


def make_clock(folder: Path) -> SetClock:
    """Skips where no C compiler is."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source, library, file = folder / "shift.c", folder / "shift.so", folder / "shift"
    source.write_text(f'#define SHIFT_FILE "{file}"\n{_SOURCE}')
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return SetClock(library, file)
