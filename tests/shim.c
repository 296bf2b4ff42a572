/* Preloaded into a process: notes its flushes in FLUSH_LOG, and makes one chosen call that writes,
   flushes, truncates or removes a file below a folder fail, fall short, stall or end the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WRITE, FLUSH, TRUNCATE, REMOVE, CALLS };
enum { NONE, FAIL_EIO, FAIL_ENOSPC, SHORT, KILL, KILL_AFTER, TORN, STICKY, LIE, FLIP, STALL };

#define STALLED_US 100000

static char folder[PATH_MAX];
static int armed_call, armed_mode;
static long armed_at, seen[CALLS];

void fault_arm(const char *below, int call, int mode, long at) {
    snprintf(folder, sizeof folder, "%s", below);
    armed_call = call, armed_mode = mode, armed_at = at;
    memset(seen, 0, sizeof seen);
}

long fault_seen(int call) { return seen[call]; }

static int is_below(const char *path) {
    return folder[0] && strncmp(path, folder, strlen(folder)) == 0;
}

static const char *path_of(int fd) {
    static char path[PATH_MAX];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size > 0 ? size : 0] = 0;
    return path;
}

static int is_of_one_below(int fd) { return is_below(path_of(fd)); }

/* What processes share is memory: no disk lies about its size, and without it they would end. */
static int is_shared(int fd) {
    size_t size = strlen(path_of(fd));
    return size > 4 && strcmp(path_of(fd) + size - 4, "-shm") == 0;
}

/* What shall become of a call; one that fails has set errno. */
static int due(int call, int is_meant) {
    if (!is_meant) return NONE;
    long at = ++seen[call];
    if (call != armed_call || at < armed_at) return NONE;
    if (at > armed_at && armed_mode != STICKY) return NONE;
    if (armed_mode == KILL) kill(getpid(), SIGKILL);
    if (armed_mode == STALL) usleep(STALLED_US);
    errno = armed_mode == FAIL_ENOSPC ? ENOSPC : EIO;
    return armed_mode;
}

static int fails(int mode) { return mode == FAIL_EIO || mode == FAIL_ENOSPC || mode == STICKY; }

static long ended(int mode, long result) {
    if (mode == KILL_AFTER || mode == TORN) kill(getpid(), SIGKILL);
    return result;
}

static ssize_t written(int fd, const void *data, size_t size, long at) {
    int mode = due(WRITE, is_of_one_below(fd));
    if (fails(mode)) return -1;
    if (mode == LIE && !is_shared(fd)) return size;
    if (mode == SHORT || mode == TORN) size = (size + 1) / 2;
    char flipped[size];
    if (mode == FLIP) {
        memcpy(flipped, data, size);
        flipped[size / 2] ^= 1;
        data = flipped;
    }
    return ended(mode, at < 0 ? syscall(SYS_write, fd, data, size)
                              : syscall(SYS_pwrite64, fd, data, size, at));
}

static int flushed(long call, const char *name, int fd) {
    if (getenv("FLUSH_LOG")) {
        FILE *log = fopen(getenv("FLUSH_LOG"), "a");
        fprintf(log, "%s(%d)\n", name, fd);
        fclose(log);
    }
    int mode = due(FLUSH, is_of_one_below(fd));
    return fails(mode) ? -1 : ended(mode, mode == LIE ? 0 : syscall(call, fd));
}

static int truncated(int fd, long size) {
    int mode = due(TRUNCATE, is_of_one_below(fd));
    return fails(mode) ? -1 : ended(mode, mode == LIE ? 0 : syscall(SYS_ftruncate, fd, size));
}

static int removed(const char *path) {
    int mode = due(REMOVE, is_below(path));
    return fails(mode) ? -1 : ended(mode, mode == LIE ? 0 : syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

ssize_t write(int fd, const void *data, size_t size) { return written(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return written(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return written(fd, data, size, at); }
int fsync(int fd) { return flushed(SYS_fsync, "fsync", fd); }
int fdatasync(int fd) { return flushed(SYS_fdatasync, "fdatasync", fd); }
int unlink(const char *path) { return removed(path); }
int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncated(fd, size); }
