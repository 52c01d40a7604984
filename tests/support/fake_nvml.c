/* A libnvidia-ml.so.1 with the GPUs of a file: FAKE_NVML names it, %h in the name is the host's name. A line a GPU:
   UUID MEMORY_GIB NVLINKS NAME. FAKE_NVML_DRIVER: the driver's version. Found through LD_LIBRARY_PATH. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64, SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

struct Gpu {
  char uuid[96];
  char name[96];
  unsigned long long memory;
  unsigned links;
};
struct Memory {
  unsigned long long total, free, used;
};

static struct Gpu gpus[MOST];
static unsigned count;

static void expand(const char* pattern, char* path, size_t size) {
  char host[256] = "";
  const char* mark = strstr(pattern, "%h");
  gethostname(host, sizeof host - 1);
  if (mark == NULL) snprintf(path, size, "%s", pattern);
  else snprintf(path, size, "%.*s%s%s", (int)(mark - pattern), pattern, host, mark + 2);
}

int nvmlInit_v2(void) {
  char path[1024];
  const char* pattern = getenv("FAKE_NVML");
  FILE* file;
  unsigned long long gib;
  if (pattern == NULL) return DRIVER_NOT_LOADED;
  expand(pattern, path, sizeof path);
  file = fopen(path, "r");
  if (file == NULL) return DRIVER_NOT_LOADED;
  count = 0;
  while (count < MOST && fscanf(file, "%95s %llu %u %95[^\n]", gpus[count].uuid, &gib, &gpus[count].links,
                                gpus[count].name) == 4) {
    gpus[count++].memory = gib << 30;
  }
  fclose(file);
  return SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char* nvmlErrorString(int code) {
  return code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : code == NOT_FOUND ? "Not Found" : "Invalid Argument";
}

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  const char* version = getenv("FAKE_NVML_DRIVER");
  snprintf(text, size, "%s", version == NULL ? "550.54.15" : version);
  return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned* number) {
  *number = count;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct Gpu** gpu) {
  if (index >= count) return INVALID_ARGUMENT;
  *gpu = &gpus[index];
  return SUCCESS;
}

int nvmlDeviceGetUUID(struct Gpu* gpu, char* text, unsigned size) {
  snprintf(text, size, "%s", gpu->uuid);
  return SUCCESS;
}

int nvmlDeviceGetName(struct Gpu* gpu, char* text, unsigned size) {
  snprintf(text, size, "%s", gpu->name);
  return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(struct Gpu* gpu, struct Memory* memory) {
  memory->total = memory->free = gpu->memory;
  memory->used = 0;
  return SUCCESS;
}

int nvmlDeviceGetNvLinkState(struct Gpu* gpu, unsigned link, unsigned* active) {
  if (link >= 18) return INVALID_ARGUMENT;
  *active = link < gpu->links;
  return SUCCESS;
}
