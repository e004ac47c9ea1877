/* Counts the file operations of a process that change files below a folder, and disturbs one of them.
 *
 * tools/storm.py compiles it and loads it with LD_PRELOAD, so that Python, SQLite and C++ libraries are all seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* In the order of DISTURBANCES in storm.py. */
enum { NOTHING, KILL_BEFORE, KILL_AFTER, KILL_MIDDLE, DISK_FULL, IO_ERROR, PARTIAL_WRITE };

static char watched[PATH_MAX];
static atomic_long count;
static long target;
static int disturbance, trace = -1;
static atomic_int is_armed, is_full;

void storm_arm(const char *folder, long at, int what, int trace_descriptor) {
    snprintf(watched, sizeof watched, "%s/", folder);
    target = at, disturbance = what, trace = trace_descriptor;
    is_full = 0;
    count = 0;
    is_armed = 1;
}

static void die(void) { syscall(SYS_kill, syscall(SYS_getpid), SIGKILL); }

static void resolve(int directory, const char *path, char *full) {
    char link[64], base[PATH_MAX] = "";
    if (path != NULL && path[0] == '/') {
        snprintf(full, PATH_MAX, "%s", path);
        return;
    }
    snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, base, sizeof base - 1);
    base[length < 0 ? 0 : length] = 0;
    snprintf(full, PATH_MAX, path == NULL ? "%s" : "%.2000s/%.2000s", base, path);
}

/* Returns 1 if this operation is the one to disturb, -1 if it must fail at once, else 0. */
static int enter(const char *operation, int directory, const char *path, int needs_space) {
    if (!is_armed || (path == NULL && directory <= 2)) return 0;
    char full[PATH_MAX];
    int before = errno;
    resolve(directory, path, full);
    errno = before;
    int is_watched = !strncmp(full, watched, strlen(watched));
    int is_file = full[0] == '/' && strncmp(full, "/dev/", 5) && strncmp(full, "/proc/", 6);
    if (!is_watched && !is_file) return 0;
    if (trace >= 0) {
        char line[PATH_MAX + 32];
        int length = snprintf(line, sizeof line, "%s %s\n", operation, full);
        syscall(SYS_write, trace, line, length);
    }
    if (!is_watched) return 0;
    int is_target = ++count == target;
    if (is_full && needs_space) return errno = ENOSPC, -1;
    if (!is_target) return 0;
    if (disturbance == KILL_BEFORE) die();
    if (disturbance == DISK_FULL) is_full = 1;
    if (disturbance == DISK_FULL) return errno = ENOSPC, -1;
    if (disturbance == IO_ERROR) return errno = EIO, -1;
    return 1;
}

static void leave(int entered) {
    if (entered == 1 && (disturbance == KILL_AFTER || disturbance == KILL_MIDDLE)) die();
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define OPERATION(name, directory, path, needs_space, ...) \
    REAL(name); \
    int entered = enter(#name, directory, path, needs_space); \
    if (entered < 0) return -1; \
    __typeof__(real(__VA_ARGS__)) result = real(__VA_ARGS__); \
    leave(entered); \
    return result

/* ---------------------------------------------------------------- opening */

static int changes(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC); }

#define OPENER(name, directory, call, ...) \
    int name(__VA_ARGS__, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        int entered = changes(flags) ? enter(#name, directory, path, flags & O_CREAT) : 0; \
        if (entered < 0) return -1; \
        int result = real call; \
        leave(entered); \
        return result; \
    }

OPENER(open, AT_FDCWD, (path, flags, mode), const char *path)
OPENER(open64, AT_FDCWD, (path, flags, mode), const char *path)
OPENER(openat, directory, (directory, path, flags, mode), int directory, const char *path)
OPENER(openat64, directory, (directory, path, flags, mode), int directory, const char *path)

#define STREAM(name) \
    FILE *name(const char *restrict path, const char *restrict mode) { \
        REAL(name); \
        int entered = strpbrk(mode, "wa+") ? enter(#name, AT_FDCWD, path, 1) : 0; \
        if (entered < 0) return NULL; \
        FILE *result = real(path, mode); \
        leave(entered); \
        return result; \
    }

STREAM(fopen)
STREAM(fopen64)

/* ---------------------------------------------------------------- writing */

#define WRITER(name, ...) \
    { \
        REAL(name); \
        int entered = enter(#name, descriptor, NULL, 1); \
        if (entered < 0) return -1; \
        if (entered == 1 && (disturbance == PARTIAL_WRITE || disturbance == KILL_MIDDLE)) size /= 2; \
        ssize_t result = real(__VA_ARGS__); \
        leave(entered); \
        if (entered == 1 && disturbance == PARTIAL_WRITE) return errno = ENOSPC, -1; \
        return result; \
    }

ssize_t write(int descriptor, const void *data, size_t size) WRITER(write, descriptor, data, size)
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) WRITER(pwrite, descriptor, data, size, at)
ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at) WRITER(pwrite64, descriptor, data, size, at)
ssize_t writev(int descriptor, const struct iovec *data, int size) WRITER(writev, descriptor, data, size)

int ftruncate(int descriptor, off_t size) { OPERATION(ftruncate, descriptor, NULL, 0, descriptor, size); }
int ftruncate64(int descriptor, off64_t size) { OPERATION(ftruncate64, descriptor, NULL, 0, descriptor, size); }
int fsync(int descriptor) { OPERATION(fsync, descriptor, NULL, 1, descriptor); }
int fdatasync(int descriptor) { OPERATION(fdatasync, descriptor, NULL, 1, descriptor); }

/* ---------------------------------------------------------------- names and folders */

int rename(const char *old, const char *new) { OPERATION(rename, AT_FDCWD, new, 1, old, new); }
int renameat(int from, const char *old, int to, const char *new) { OPERATION(renameat, to, new, 1, from, old, to, new); }
int link(const char *old, const char *new) { OPERATION(link, AT_FDCWD, new, 1, old, new); }
int symlink(const char *old, const char *new) { OPERATION(symlink, AT_FDCWD, new, 1, old, new); }
int mkdir(const char *path, mode_t mode) { OPERATION(mkdir, AT_FDCWD, path, 1, path, mode); }
int mkdirat(int in, const char *path, mode_t mode) { OPERATION(mkdirat, in, path, 1, in, path, mode); }
int unlink(const char *path) { OPERATION(unlink, AT_FDCWD, path, 0, path); }
int unlinkat(int in, const char *path, int flags) { OPERATION(unlinkat, in, path, 0, in, path, flags); }
int rmdir(const char *path) { OPERATION(rmdir, AT_FDCWD, path, 0, path); }
int chmod(const char *path, mode_t mode) { OPERATION(chmod, AT_FDCWD, path, 0, path, mode); }

/* ---------------------------------------------------------------- locks */

int flock(int descriptor, int operation) { OPERATION(flock, descriptor, NULL, 0, descriptor, operation); }

#define LOCKER(name) \
    int name(int descriptor, int command, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, command); \
        void *argument = va_arg(rest, void *); \
        va_end(rest); \
        int locks = command == F_SETLK || command == F_SETLKW; \
        if (locks) locks = ((struct flock *)argument)->l_type == F_WRLCK; \
        int entered = locks ? enter(#name, descriptor, NULL, 0) : 0; \
        if (entered < 0) return -1; \
        int result = real(descriptor, command, argument); \
        leave(entered); \
        return result; \
    }

LOCKER(fcntl)
LOCKER(fcntl64)
