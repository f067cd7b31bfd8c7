/* Comes between a program and its C library (LD_PRELOAD): a wall clock that can be set, and a machine that gives no new
 * processes. What holds is read from a mapped file, so that it changes for a program that runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct altered {
    int64_t clock_ahead_seconds;
    int64_t no_new_processes;
};

static volatile struct altered *altered;

__attribute__((constructor)) static void open_altered(void) {
    const char *path = getenv("ALTERED_MACHINE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *altered, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) altered = mapped;
}

static int64_t ahead(void) { return altered ? altered->clock_ahead_seconds : 0; }
static int refused(void) { return altered && altered->no_new_processes; }

int clock_gettime(clockid_t id, struct timespec *now) {
    int done = (int)syscall(SYS_clock_gettime, id, now);
    if (done == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec read;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &read) != 0) return -1;
    now->tv_sec = read.tv_sec;
    now->tv_usec = read.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec read;
    if (clock_gettime(CLOCK_REALTIME, &read) != 0) return -1;
    if (out) *out = read.tv_sec;
    return read.tv_sec;
}

typedef int (*spawner)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                       char *const[], char *const[]);

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    if (refused()) return EAGAIN;
    spawner next = (spawner)dlsym(RTLD_NEXT, "posix_spawn");
    return next(pid, path, actions, attributes, arguments, environment);
}

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    if (refused()) return EAGAIN;
    spawner next = (spawner)dlsym(RTLD_NEXT, "posix_spawnp");
    return next(pid, file, actions, attributes, arguments, environment);
}

pid_t fork(void) {
    if (refused()) {
        errno = EAGAIN;
        return -1;
    }
    pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
    return next();
}
