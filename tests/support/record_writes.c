// Preloaded into a program: a line for every write to, sync and rename of a regular file or folder, in the order in
// which they happened among all processes that share the log. RECORD_WRITES_LOG names it; without it nothing is said.
//
//     wrote PATH        after a write
//     syncing PATH      before a sync of a file or folder; synced PATH after one that succeeded
//     made PATH         after a folder was made
//     renaming OLD NEW  before a rename; renamed OLD NEW after one that succeeded
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// One write call a line: lines of several processes do not mix. System calls, for those of the library are recorded.
static void say(const char* format, ...) {
  const char* const log = getenv("RECORD_WRITES_LOG");
  if (log == NULL) return;
  const int error = errno;
  char line[3 * PATH_MAX];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  const int file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (syscall(SYS_write, file, line, (size_t)length) != length) abort();
  syscall(SYS_close, file);
  errno = error;
}

// Nothing for what is neither a regular file nor a folder.
static const char* path_of(int file, char* path) {
  struct stat status;
  if (fstat(file, &status) != 0 || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) return NULL;
  char link[64];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, PATH_MAX - 1);
  if (length < 0) return NULL;
  path[length] = '\0';
  return path;
}

static void say_written(int file) {
  char path[PATH_MAX];
  if (path_of(file, path) != NULL) say("wrote %s\n", path);
}

ssize_t write(int file, const void* data, size_t bytes) {
  const ssize_t written = REAL(write)(file, data, bytes);
  say_written(file);
  return written;
}

ssize_t pwrite64(int file, const void* data, size_t bytes, off64_t offset) {
  const ssize_t written = REAL(pwrite64)(file, data, bytes, offset);
  say_written(file);
  return written;
}

ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) { return pwrite64(file, data, bytes, offset); }

// What the library writes for a stream it writes without the functions above.
size_t fwrite(const void* data, size_t size, size_t count, FILE* stream) {
  const size_t written = REAL(fwrite)(data, size, count, stream);
  say_written(fileno(stream));
  return written;
}

int fflush(FILE* stream) {
  const int result = REAL(fflush)(stream);
  if (stream != NULL) say_written(fileno(stream));
  return result;
}

static int sync_recorded(int file, int (*sync_it)(int)) {
  char path[PATH_MAX];
  const int recorded = path_of(file, path) != NULL;
  if (recorded) say("syncing %s\n", path);
  const int result = sync_it(file);
  if (recorded && result == 0) say("synced %s\n", path);
  return result;
}

int fsync(int file) { return sync_recorded(file, REAL(fsync)); }
int fdatasync(int file) { return sync_recorded(file, REAL(fdatasync)); }

// Of a path whose last part need not exist.
static const char* absolute(const char* path, char* whole) {
  char folder[PATH_MAX];
  const char* const slash = strrchr(path, '/');
  snprintf(folder, sizeof(folder), "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1, slash == NULL ? "." : path);
  if (realpath(folder, whole) == NULL) return path;
  const size_t length = strlen(whole);
  snprintf(whole + length, PATH_MAX - length, "/%s", slash == NULL ? path : slash + 1);
  return whole;
}

int mkdir(const char* path, mode_t mode) {
  char whole[PATH_MAX];
  const int result = REAL(mkdir)(path, mode);
  if (result == 0) say("made %s\n", absolute(path, whole));
  return result;
}

int rename(const char* from, const char* to) {
  char old_path[PATH_MAX], new_path[PATH_MAX];
  absolute(from, old_path);
  absolute(to, new_path);
  say("renaming %s %s\n", old_path, new_path);
  const int result = REAL(rename)(from, to);
  if (result == 0) say("renamed %s %s\n", old_path, new_path);
  return result;
}
