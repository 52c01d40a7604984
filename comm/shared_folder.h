// Where MPI keeps the files behind shared memory: a folder of the job on every host. MPI alone leaves such a file
// behind for ever when a rank is killed before the file has lost its name; from here it goes with the folder:
//   1. with the last rank of the job that leaves the host;
//   2. at once with a rank that ends early, since the job ends with it: what is mapped stays mapped;
//   3. where nobody was left to do that, with the next job of the same user.
#pragma once

#include <chrono>
#include <string>

namespace ringmark::comm {

// What MPI maps its windows from, and every size check looks at.
inline constexpr const char* kSharedMemory = "/dev/shm";

class SharedFolder {
 public:
  // Before MPI is initialised, and before other threads read the environment. Where there is no job id or no room for a
  // folder, and where the user has chosen a place, MPI goes where it would have gone. Never throws for that.
  explicit SharedFolder(std::chrono::duration<double> leave_timeout);
  // After MPI is finalised. The ranks of a host leave together, or after leave_timeout: mpirun kills those that are
  // still on their way when one has ended with an exit code, and nobody misses the last one when it stops.
  ~SharedFolder();
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  // This process ends now, and its job with it. From any thread.
  static void discard() noexcept;

 private:
  bool join();

  std::chrono::duration<double> leave_timeout_;
  std::string path_;  // empty: MPI's own places
  int folder_ = -1;   // holds a shared lock as long as this rank may use it
};

}  // namespace ringmark::comm
