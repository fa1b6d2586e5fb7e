"""ptrace and seccomp, as far as a recorder needs them: a stop at each call of the kernel that may change a disk.

Linux on x86-64 and arm64. The filter lets all other calls through at full speed. See ptrace(2), seccomp(2)."""

import ctypes
import os
from dataclasses import dataclass

_NUMBERS = {
    "x86_64": """
        write=1 open=2 mmap=9 pwrite64=18 writev=20 msync=26 sendfile=40 fsync=74 fdatasync=75 truncate=76
        ftruncate=77 rename=82 mkdir=83 rmdir=84 creat=85 link=86 unlink=87 symlink=88 chmod=90 fchmod=91
        sync=162 openat=257 mkdirat=258 unlinkat=263 renameat=264 linkat=265 symlinkat=266 fchmodat=268
        sync_file_range=277 fallocate=285 pwritev=296 syncfs=306 renameat2=316 copy_file_range=326
        pwritev2=328 io_uring_setup=425 openat2=437
    """,
    "aarch64": """
        mkdirat=34 unlinkat=35 symlinkat=36 linkat=37 renameat=38 truncate=45 ftruncate=46 fallocate=47
        fchmod=52 fchmodat=53 openat=56 write=64 writev=66 pwrite64=68 pwritev=70 sendfile=71 sync=81 fsync=82
        fdatasync=83 sync_file_range=84 mmap=222 msync=227 syncfs=267 renameat2=276 copy_file_range=285
        pwritev2=287 io_uring_setup=425 openat2=437
    """,
}
CALLS = {int(number): name for name, number in (pair.split("=") for pair in _NUMBERS[os.uname().machine].split())}
"""Names of the calls that stop, by their numbers here."""

_FLAGS_AT = {"open": 1, "openat": 2, "mmap": 3}
_MAKES = os.O_CREAT | os.O_TRUNC | (os.O_TMPFILE & ~os.O_DIRECTORY)
_SHARED = 1
_CONTINUE, _UNTIL_EXIT, _SEIZE, _LISTEN, _MESSAGE, _INFO = 7, 24, 0x4206, 0x4208, 0x4201, 0x420E
_TRACE_ALL = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000
"""Exits told apart, all kinds of children, exec, the filter's stops; all end with the tracer."""
EXEC, SECCOMP, STOPPED = 4, 7, 128
WALL = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Instruction)))


class _Info(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_uint8),
        ("flags", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("places", ctypes.c_uint64 * 2),
        ("values", ctypes.c_uint64 * 8),
    )


@dataclass(frozen=True, slots=True)
class Call:
    """At its entry."""

    name: str
    arguments: tuple[int, ...]


def stop_at_calls() -> None:
    """For this process and all that it will start. Without a tracer these calls fail from now on."""
    program = _filter()
    instructions = (_Instruction * len(program))(*(_Instruction(*row) for row in program))
    _check(_libc.prctl(38, 1, 0, 0, 0))
    _check(_libc.prctl(22, 2, ctypes.byref(_Program(len(program), instructions)), 0, 0))


def _filter() -> list[tuple[int, int, int, int]]:
    load, equals, has, give = 0x20, 0x15, 0x45, 0x06
    rows = [(load, 0, 0, 0)]
    for number, name in CALLS.items():
        if name not in _FLAGS_AT:
            rows += [(equals, 0, 1, number), (give, 0, 0, 0x7FF00000)]
            continue
        flags = _SHARED if name == "mmap" else _MAKES
        rows += [(equals, 0, 4, number), (load, 0, 0, 16 + 8 * _FLAGS_AT[name])]
        rows += [(has, 0, 1, flags), (give, 0, 0, 0x7FF00000), (give, 0, 0, 0x7FFF0000)]
    return [*rows, (give, 0, 0, 0x7FFF0000)]


def seize(pid: int) -> None:
    _check(_libc.ptrace(_SEIZE, pid, None, _TRACE_ALL))


def go_on(pid: int, signal: int = 0) -> None:
    _ask(_CONTINUE, pid, signal)


def go_to_exit(pid: int, signal: int = 0) -> None:
    """To the end of the call at whose entry it stands."""
    _ask(_UNTIL_EXIT, pid, signal)


def stay_stopped(pid: int) -> None:
    _ask(_LISTEN, pid, 0)


def entered(pid: int) -> Call:
    values = _info(pid).values
    return Call(CALLS[values[0]], tuple(values[1:7]))


def returned(pid: int) -> int:
    """What the call gave; negative for an error."""
    return ctypes.c_int64(_info(pid).values[0]).value


def _info(pid: int) -> _Info:
    info = _Info()
    _check(_libc.ptrace(_INFO, pid, ctypes.sizeof(info), ctypes.addressof(info)))
    return info


def _ask(request: int, pid: int, signal: int) -> None:
    # A process that was killed meanwhile is gone: its end is reported by the next wait.
    if _libc.ptrace(request, pid, None, signal) < 0 and ctypes.get_errno() != 3:
        _check(-1)


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"this machine does not let its processes be traced: {os.strerror(number)}")
