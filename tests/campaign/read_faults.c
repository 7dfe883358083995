// Preloaded into runs by data_faults.py: reads of files whose path contains READ_FAULT_PATH fail or hang.
//
//   READ_FAULT  errno (EIO) | hang
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int is_ours(int fd) {
  const char* part = getenv("READ_FAULT_PATH");
  char link[64], path[1024];
  if (part == NULL) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return strstr(path, part) != NULL;
}

static ssize_t strike(void) {
  const char* fault = getenv("READ_FAULT");
  while (fault != NULL && strcmp(fault, "hang") == 0) pause();
  errno = EIO;
  return -1;
}

ssize_t pread(int fd, void* to, size_t size, off_t at) {
  static ssize_t (*real)(int, void*, size_t, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread");
  return is_ours(fd) ? strike() : real(fd, to, size, at);
}

ssize_t pread64(int fd, void* to, size_t size, off_t at) { return pread(fd, to, size, at); }
