/* Preloaded into a process, records what that does to files, in order, in the file $RECORDED: for each change a line
   `NAME INODE NUMBER LENGTH` and LENGTH bytes. Only the calls that Rust's standard library makes are recorded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Held over a call and its entry, so that entries are in the order of the changes. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define RECORDING for (int once = pthread_mutex_lock(&lock) + 1; once; once = pthread_mutex_unlock(&lock))

static void put(const char *name, unsigned long inode, long number, const void *bytes, size_t n) {
    static int record = -1;
    char head[128];
    if (record < 0) record = REAL(open64)(getenv("RECORDED"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int n_head = snprintf(head, sizeof head, "%s %lu %ld %zu\n", name, inode, number, n);
    if (REAL(write)(record, head, n_head) != n_head || REAL(write)(record, bytes, n) != (ssize_t)n) abort();
}

/* The inode of a file or a folder; 0 of anything else. */
static unsigned long inode_of(int fd) {
    struct stat it;
    return fstat(fd, &it) == 0 && (S_ISREG(it.st_mode) || S_ISDIR(it.st_mode)) ? it.st_ino : 0;
}

static const char *absolute(int folder, const char *path, char out[2 * PATH_MAX]) {
    char link[64] = "/proc/self/cwd";
    if (*path == '/') return path;
    if (folder != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, out, PATH_MAX);
    snprintf(out + (n > 0 ? n : 0), PATH_MAX, "/%s", path);
    return out;
}

static void put_path(const char *name, unsigned long inode, int folder, const char *path) {
    char buffer[2 * PATH_MAX];
    path = absolute(folder, path, buffer);
    put(name, inode, 0, path, strlen(path));
}

int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    int fd = -1;
    RECORDING {
        int is_new = flags & O_CREAT && faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
        fd = REAL(open64)(path, flags, mode);
        if (fd >= 0 && is_new) put_path("create", inode_of(fd), AT_FDCWD, path);
        if (fd >= 0 && !is_new && flags & O_TRUNC && inode_of(fd)) put("resize", inode_of(fd), 0, "", 0);
    }
    return fd;
}

ssize_t write(int fd, const void *bytes, size_t n) {
    ssize_t done = -1;
    RECORDING {
        done = REAL(write)(fd, bytes, n);
        if (done > 0 && inode_of(fd)) put("write", inode_of(fd), lseek(fd, 0, SEEK_CUR) - done, bytes, done);
    }
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int n) {
    int i = 0;
    while (i < n - 1 && parts[i].iov_len == 0) i++;
    return n > 0 ? write(fd, parts[i].iov_base, parts[i].iov_len) : 0; /* the caller writes the rest */
}

int ftruncate64(int fd, off64_t length) {
    int failed = -1;
    RECORDING {
        failed = REAL(ftruncate64)(fd, length);
        if (!failed) put("resize", inode_of(fd), length, "", 0);
    }
    return failed;
}

#define SYNC(name)                                      \
    int name(int fd) {                                  \
        int failed = -1;                                \
        RECORDING {                                     \
            failed = REAL(name)(fd);                    \
            if (!failed) put("sync", inode_of(fd), 0, "", 0); \
        }                                               \
        return failed;                                  \
    }
SYNC(fsync)
SYNC(fdatasync)

int mkdir(const char *path, mode_t mode) {
    int failed = -1;
    RECORDING {
        struct stat it = {0};
        failed = REAL(mkdir)(path, mode);
        if (!failed && stat(path, &it) == 0) put_path("mkdir", it.st_ino, AT_FDCWD, path);
    }
    return failed;
}

int rename(const char *from, const char *to) {
    int failed = -1;
    RECORDING {
        char from_buffer[2 * PATH_MAX], to_buffer[2 * PATH_MAX], both[4 * PATH_MAX];
        failed = REAL(rename)(from, to);
        int n = snprintf(both, sizeof both, "%s\n%s", absolute(AT_FDCWD, from, from_buffer),
                         absolute(AT_FDCWD, to, to_buffer));
        if (!failed) put("rename", 0, 0, both, n);
    }
    return failed;
}

int unlinkat(int folder, const char *path, int flags) {
    int failed = -1;
    RECORDING {
        failed = REAL(unlinkat)(folder, path, flags);
        if (!failed) put_path("remove", 0, folder, path);
    }
    return failed;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
