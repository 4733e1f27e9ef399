"""Try a change of gloo's event loop without building gloo: `python -m tools.gloo_patch FOLDER`.

If `Pair::handleEvents` finds the pair's lock taken, it returns, and the loop polls again at once. It tries the lock by
an imported function, so a preloaded library can yield or sleep there, in gloo's loop thread only. Out: the library, and
for each change an interpreter that loads it: FOLDER/python-yield, -sleep20, -sleep50 and -sleep100 (µs), and
python-same, which loads it and changes nothing; compare by `collbench ab gloo-stalls --b python=FOLDER/python-yield`.
Needs Linux, a C compiler, and a gloo that names its thread, as gloo of torch 2.13 does.
"""

import argparse
import subprocess
import sys
from pathlib import Path

PATCH = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static int (*try)(pthread_mutex_t *);
static long pause_us = -1;
__attribute__((constructor)) static void begin(void) {
    const char *asked = getenv("GLOO_BUSY_US");
    if (asked) pause_us = atol(asked);
    try = dlsym(RTLD_NEXT, "pthread_mutex_trylock");
}
int pthread_mutex_trylock(pthread_mutex_t *mutex) {
    int taken = try(mutex);
    char name[16] = "";
    if (taken != EBUSY || pause_us < 0) return taken;
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (strcmp(name, "gloo_tcp_loop")) return taken;
    struct timespec pause = {0, pause_us * 1000};
    if (pause_us) nanosleep(&pause, NULL);
    else sched_yield();
    return taken;
}
"""
# Microseconds to sleep; 0 yields, a negative number changes nothing.
CHANGES = {"same": -1, "yield": 0, "sleep20": 20, "sleep50": 50, "sleep100": 100}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "patch.c", folder / "patch.so"
    source.write_text(PATCH)
    subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    for name, pause_us in CHANGES.items():
        python = folder / f"python-{name}"
        python.write_text(
            f'#!/bin/sh\nexport GLOO_BUSY_US={pause_us} LD_PRELOAD="{library}"\nexec "{sys.executable}" "$@"\n'
        )
        python.chmod(0o755)
        print(python)


if __name__ == "__main__":
    main()
