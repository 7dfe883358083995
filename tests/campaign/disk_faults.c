// Preloaded into runs by resumes.py: counts the calls by which checkpoints reach the disk, logs them, and injects a
// fault into the run at one of them.
//
//   FAULT_FOLDER  calls on paths that contain this count
//   FAULT_LOG     one line a call: number, call, path, and (pwrite) offset, size and where in FAULT_LOG.data the bytes
//   are FAULT_AT      number of the call, from 1; 0: none FAULT         of that call alone: kill (this process) |
//   parent (its parent) | group (and its parent) | short (half of a
//                 write) | torn (half of a write, then group) | errno. Of this and every later call of writers: killer
//                 | slow (50 ms per call) | hang, full (ENOSPC) and fails:errno, all three until there is FAULT_LOG.go
//   FAULT_CALL    fails:errno only at these calls: create | write | fsync | mkdir | rename | unlink | rmdir
//   FAULT_LAG     seconds for which listings lack new names
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char paths[1024][512];  // of descriptors; empty: not of the folder

// In FAULT_LOG.count: a writer that follows one that was killed continues counting.
static struct {
  int calls;
  long data_at;  // bytes of FAULT_LOG.data
} * shared;
static int count;  // number of the call of this process

static int is_ours(const char* path) {
  const char* folder = getenv("FAULT_FOLDER");
  return folder != NULL && strstr(path, folder) != NULL;
}

static int open_beside(const char* suffix, int flags) {
  static int (*real)(const char*, int, ...);
  if (!real) real = dlsym(RTLD_NEXT, "open");
  char path[600];
  snprintf(path, sizeof path, "%s%s", getenv("FAULT_LOG"), suffix);
  return real(path, flags | O_CLOEXEC, 0666);
}

static void append(const char* suffix, const void* data, size_t size) {
  const int fd = open_beside(suffix, O_WRONLY | O_CREAT | O_APPEND);
  if (write(fd, data, size) < 0) abort();
  close(fd);
}

static void log_call(const char* call, const char* path, const char* more) {
  char line[1400];
  append("", line, (size_t)snprintf(line, sizeof line, "%d\t%s\t%s\t%s\n", count, call, path, more));
}

// The launcher's parent is the campaign.
static int is_writer(void) {
  char name[32] = "";
  prctl(PR_GET_NAME, name);
  return strcmp(name, "trainctl-save") == 0;
}

static void kill_all(void) {
  if (is_writer()) kill(getppid(), SIGKILL);  // the writer has a group of its own
  kill(0, SIGKILL);
}

static int may_go(void) {
  char path[600];
  snprintf(path, sizeof path, "%s.go", getenv("FAULT_LOG"));
  return access(path, F_OK) == 0;
}

static void next_call(void) {
  if (!shared) {
    const int fd = open_beside(".count", O_RDWR | O_CREAT);
    if (fd < 0 || ftruncate(fd, sizeof *shared) != 0) abort();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) abort();
    close(fd);
  }
  count = __atomic_add_fetch(&shared->calls, 1, __ATOMIC_SEQ_CST);
}

// Returns the errno to fail with; 0: none; -1: write half; -2: write half and then kill.
static int strike(const char* call) {
  next_call();
  const char* at = getenv("FAULT_AT");
  const char* what = getenv("FAULT");
  if (at == NULL || what == NULL || count < atoi(at)) return 0;
  if (strcmp(what, "killer") == 0 && is_writer()) kill(getpid(), SIGKILL);
  if (strcmp(what, "slow") == 0 && is_writer()) usleep(50000);
  if (strcmp(what, "full") == 0 && is_writer() && !may_go()) return ENOSPC;
  const char* which = getenv("FAULT_CALL");
  if (strncmp(what, "fails:", 6) == 0) {
    if (!is_writer() || may_go() || (which != NULL && strcmp(which, call) != 0)) return 0;
    return atoi(what + 6);
  }
  while (strcmp(what, "hang") == 0 && is_writer() && !may_go()) usleep(10000);
  if (count != atoi(at)) return 0;
  if (strcmp(what, "kill") == 0) kill(getpid(), SIGKILL);
  if (strcmp(what, "parent") == 0) kill(is_writer() ? getppid() : getpid(), SIGKILL);
  if (strcmp(what, "group") == 0) kill_all();
  if (strcmp(what, "torn") == 0) return -2;
  return strcmp(what, "short") == 0 ? -1 : atoi(what);
}

#define REAL(type, name, ...)       \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define STRIKE(call, path, more)  \
  const int error = strike(call); \
  if (error > 0) {                \
    errno = error;                \
    return -1;                    \
  }                               \
  if (error == -2) kill_all();    \
  log_call(call, path, more)

int open(const char* path, int flags, ...) {
  static int (*real)(const char*, int, ...);
  if (!real) real = dlsym(RTLD_NEXT, "open");
  va_list rest;
  va_start(rest, flags);
  const int mode = va_arg(rest, int);
  va_end(rest);
  if (!is_ours(path)) return real(path, flags, mode);
  if (flags & O_CREAT) {
    STRIKE("create", path, flags & O_TRUNC ? "trunc" : "");
  }
  const int fd = real(path, flags, mode);
  if (fd >= 0 && fd < 1024) snprintf(paths[fd], sizeof paths[fd], "%s", path);
  return fd;
}

int close(int fd) {
  REAL(int, close, int);
  if (fd >= 0 && fd < 1024) paths[fd][0] = 0;
  return real(fd);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  REAL(ssize_t, pwrite, int, const void*, size_t, off_t);
  if (fd < 0 || fd >= 1024 || !paths[fd][0]) return real(fd, data, size, at);
  const int error = strike("write");
  if (error > 0) {
    errno = error;
    return -1;
  }
  if (error < 0 && size > 1) size /= 2;
  char more[100];
  const long data_at = __atomic_fetch_add(&shared->data_at, (long)size, __ATOMIC_SEQ_CST);
  snprintf(more, sizeof more, "%lld\t%zu\t%ld", (long long)at, size, data_at);
  log_call("write", paths[fd], more);
  append(".data", data, size);
  const ssize_t done = real(fd, data, size, at);
  if (error == -2) kill_all();
  return done;
}

int fsync(int fd) {
  REAL(int, fsync, int);
  if (fd < 0 || fd >= 1024 || !paths[fd][0]) return real(fd);
  STRIKE("fsync", paths[fd], "");
  return real(fd);
}

int mkdir(const char* path, mode_t mode) {
  REAL(int, mkdir, const char*, mode_t);
  if (!is_ours(path)) return real(path, mode);
  STRIKE("mkdir", path, "");
  return real(path, mode);
}

int rename(const char* from, const char* to) {
  REAL(int, rename, const char*, const char*);
  if (!is_ours(from)) return real(from, to);
  STRIKE("rename", from, to);
  return real(from, to);
}

int unlink(const char* path) {
  REAL(int, unlink, const char*);
  if (!is_ours(path)) return real(path);
  STRIKE("unlink", path, "");
  return real(path);
}

int rmdir(const char* path) {
  REAL(int, rmdir, const char*);
  if (!is_ours(path)) return real(path);
  STRIKE("rmdir", path, "");
  return real(path);
}

static int is_new(DIR* folder, const struct dirent* entry) {
  char link[64], path[512];
  snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd(folder));
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  struct stat info;
  if (!is_ours(path) || entry->d_name[0] == '.' && strspn(entry->d_name, ".") == strlen(entry->d_name)) return 0;
  if (fstatat(dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) return 0;
  return time(NULL) - info.st_ctim.tv_sec < atoi(getenv("FAULT_LAG"));
}

struct dirent* readdir(DIR* folder) {
  static struct dirent* (*real)(DIR*);
  if (!real) real = dlsym(RTLD_NEXT, "readdir");
  struct dirent* entry = real(folder);
  while (entry != NULL && getenv("FAULT_LAG") != NULL && is_new(folder, entry)) entry = real(folder);
  return entry;
}
