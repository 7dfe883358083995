// Processes of this host that run a measurement together, one per rank, and the memory that they share with the process
// that started them.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/runtime/communicator.h"

namespace trainctl {

/// Calls `main` once for each rank, in a separate process, and waits until all have ended. They are killed when this
/// process ends. Calls `lost` here as soon as a rank has failed, so that the others stop waiting for it; then throws
/// EnvError with the message of the first that failed. Forks, so call it while the process has one thread.
void run_rank_processes(int ranks, const std::function<void(int rank)>& main,
                        const std::function<void(int rank)>& lost);

/// Zeroed values that processes forked later share. T is trivial.
template <class T>
class SharedValues {
 public:
  explicit SharedValues(size_t count) : bytes_(count * sizeof(T)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw EnvError(std::string("cannot allocate shared memory for the results of the ranks: ") +
                     std::strerror(errno));
    values_ = static_cast<T*>(memory);
  }
  ~SharedValues() { munmap(values_, bytes_); }
  SharedValues(const SharedValues&) = delete;
  SharedValues& operator=(const SharedValues&) = delete;

  T& operator[](size_t i) const { return values_[i]; }

 private:
  const size_t bytes_;
  T* values_ = nullptr;
};

/// Makes all ranks agree on numbers, so that they make the same calls. Each function is collective.
class Agreed {
 public:
  explicit Agreed(Communicator& ranks);
  /// Returns the value of rank 0.
  int32_t operator()(double mine);
  /// Returns the largest value of all ranks, as a float.
  double most(double mine);
  void barrier() { ranks_.barrier(group_); }

 private:
  Communicator& ranks_;
  int group_ = -1;
};

}  // namespace trainctl
