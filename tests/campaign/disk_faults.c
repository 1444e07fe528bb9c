// A disk that fails, preloaded (LD_PRELOAD) into the program by tests/campaign/kill: the call number
// FAULT_AT among those that write to files under the folder FAULT_UNDER fails as FAULT says, and so
// do all after it: "enospc" (the disk is full), "eio" (it does not write), "erofs" (it became
// read-only); "short" only writes half, each time. Calls are counted over all threads.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long calls;

static int is_under(const char* path) {
  const char* folder = getenv("FAULT_UNDER");
  return folder != NULL && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_file_under(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_under(path);
}

// Whether this call fails.
static int fails(void) {
  const char* at = getenv("FAULT_AT");
  return at != NULL && atomic_fetch_add(&calls, 1) >= atol(at);
}

static int error_of_fault(void) {
  const char* fault = getenv("FAULT");
  if (strcmp(fault, "enospc") == 0) return ENOSPC;
  return strcmp(fault, "erofs") == 0 ? EROFS : EIO;
}

static int is_short(void) { return strcmp(getenv("FAULT"), "short") == 0; }

ssize_t write(int descriptor, const void* data, size_t bytes) {
  static ssize_t (*real)(int, const void*, size_t);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "write");
  if (!is_file_under(descriptor) || !fails()) return real(descriptor, data, bytes);
  if (is_short()) return real(descriptor, data, bytes > 1 ? bytes / 2 : bytes);
  errno = error_of_fault();
  return -1;
}

int fsync(int descriptor) {
  static int (*real)(int);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "fsync");
  if (!is_file_under(descriptor) || !fails() || is_short()) return real(descriptor);
  errno = error_of_fault();
  return -1;
}

int ftruncate(int descriptor, off_t length) {
  static int (*real)(int, off_t);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "ftruncate");
  if (!is_file_under(descriptor) || !fails() || is_short()) return real(descriptor, length);
  errno = error_of_fault();
  return -1;
}

int rename(const char* from, const char* to) {
  static int (*real)(const char*, const char*);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "rename");
  if (!is_under(to) || !fails() || is_short()) return real(from, to);
  errno = error_of_fault();
  return -1;
}

int mkdir(const char* path, mode_t mode) {
  static int (*real)(const char*, mode_t);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "mkdir");
  if (!is_under(path) || !fails() || is_short()) return real(path, mode);
  errno = error_of_fault();
  return -1;
}
