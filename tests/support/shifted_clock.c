/* A wall clock that a test moves while processes run: preloaded (LD_PRELOAD), it adds to CLOCK_REALTIME the nanoseconds that stand
   in the file SHIFTED_CLOCK, which every process of a tree maps; 0, or no file: the true time. MONOTONIC and BOOTTIME stay true. What
   waits until a time of the wall clock waits as long as it would have. Built by support/shifted_clock.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static const int64_t still = 0;
static const volatile int64_t *shift;
static int (*true_gettime)(clockid_t, struct timespec *);
static int (*true_nanosleep)(clockid_t, int, const struct timespec *, struct timespec *);
static int (*true_timedwait)(sem_t *, const struct timespec *);

static void prepare(void) {
    if (true_gettime != NULL)
        return;
    int kept = errno;
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof still, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    shift = page == MAP_FAILED ? &still : page;
    true_nanosleep = dlsym(RTLD_NEXT, "clock_nanosleep");
    true_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
    true_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    errno = kept;
}

__attribute__((constructor)) static void load(void) { prepare(); }

static int is_wall(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

static void move(struct timespec *at, int64_t by) {
    int64_t all = (int64_t)at->tv_nsec + by % SECOND + SECOND; /* of [0, 3 s) */
    at->tv_sec += by / SECOND + all / SECOND - 1;
    at->tv_nsec = all % SECOND;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    prepare();
    int answer = true_gettime(clock, at);
    if (answer == 0 && is_wall(clock))
        move(at, *shift);
    return answer;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL)
        *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, at) == 0 ? base : 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    prepare();
    if (!is_wall(clock) || !(flags & TIMER_ABSTIME))
        return true_nanosleep(clock, flags, until, left);
    struct timespec at = *until;
    move(&at, -*shift);
    return true_nanosleep(clock, flags, &at, left);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    prepare();
    struct timespec at = *until;
    move(&at, -*shift);
    return true_timedwait(semaphore, &at);
}
