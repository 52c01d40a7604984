// usage: write_malformed_files FOLDER   the malformed safetensors files of the reader's test, one file each, for tests
// of the command line.
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/kvstore/malformed_safetensors.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int number = 0;
  for (const auto& file : ringmark::test::malformed_safetensors()) {
    char name[32];
    std::snprintf(name, sizeof(name), "/%03d.safetensors", number++);
    std::ofstream(argv[1] + std::string(name), std::ios::binary) << file.bytes;
  }
  return number >= 40 ? 0 : 1;
}
