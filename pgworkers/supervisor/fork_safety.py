"""Threads that keep the supervisor from forking: end those of numeric libraries, and name the others.

A process with threads must not fork. OpenBLAS and OpenMP start theirs when they are loaded, or with the first work. They can
end them, and start them again in the process that has work next. threadpoolctl knows which of these libraries are loaded. It
can only change how many threads they use, so their own functions are called to end them.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from pathlib import Path

#: How the name of a thread begins that Python does not know.
NATIVE_THREAD_PREFIX = "native thread"


def threads_blocking_fork() -> list[str]:
    """Names of threads that keep this process from forking.

    Those of numeric libraries are ended first, if possible.
    """
    if not running_threads():
        return []
    stop_library_threads()
    found = running_threads()
    if any(name.startswith(NATIVE_THREAD_PREFIX) for name in found) and (
        libraries := loaded_thread_libraries()
    ):
        found.append(f"loaded libraries with threads of their own: {', '.join(libraries)}")
    return found


def running_threads() -> list[str]:
    """Names of all threads but the main one: Python's, and those that libraries started."""
    if os.stat("/proc/self/task").st_nlink == 3:  # itself, its parent and one thread: before every fork
        return []
    named = {thread.native_id: thread.name for thread in threading.enumerate()}
    named.pop(os.getpid(), None)
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid() and int(task) not in named:
            try:
                comm = Path(f"/proc/self/task/{task}/comm").read_text().strip()
            except OSError:
                continue
            named[int(task)] = f"{NATIVE_THREAD_PREFIX} {comm}"
    return sorted(named.values())


#: Libraries that have threads of their own, by the name of their file, if threadpoolctl does not know them.
_THREADED_LIBRARIES = re.compile(
    r"/lib[^/]*(openblas|blis|mkl|gomp|omp5?|tbb|arrow|torch|grpc|tensorflow|onnxruntime)[^/]*\.so|/polars[^/]*\.so"
)
_OMP_PAUSE_HARD = 2


def stop_library_threads() -> None:
    """End the threads that libraries can end. Those that cannot keep theirs."""
    try:
        import threadpoolctl  # type: ignore[import-untyped]
    except ImportError:
        return
    for found in threadpoolctl.threadpool_info():
        try:
            library = ctypes.CDLL(found["filepath"])
            if found["internal_api"] == "openblas":
                library.blas_thread_shutdown_()
            elif found["internal_api"] == "openmp":
                library.omp_pause_resource_all(_OMP_PAUSE_HARD)
        except (OSError, AttributeError):
            continue  # an older one, without that function


def loaded_thread_libraries() -> list[str]:
    """Loaded libraries that start threads, for people: `libscipy_openblas64_.so (numpy)`."""
    import psutil  # here: only a supervisor that refuses to fork needs it

    try:
        files = {loaded.path for loaded in psutil.Process().memory_maps()}
    except psutil.Error:
        return []
    files = {file for file in files if _THREADED_LIBRARIES.search(file)}
    return sorted(_describe_library(file) for file in files)


def _describe_library(file: str) -> str:
    """The file, and the package that brought it."""
    before, found, inside = file.partition("/site-packages/")
    package = inside.partition("/")[0].removesuffix(".libs") if found else ""
    name = os.path.basename(file)
    return f"{name} ({package})" if package and package != name else name if before else file
