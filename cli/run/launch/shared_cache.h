// Memory in which the ranks of a host keep samples for each other (engine/train/data/cached_set.h): a file without a
// name, which they inherit. It is empty until a rank makes room in it, and gone when the last process that has it ends.
#pragma once

namespace trainctl {

class SharedCache {
 public:
  SharedCache() = default;
  /// EnvError.
  static SharedCache create();
  ~SharedCache();
  SharedCache(SharedCache&& other) noexcept;
  SharedCache& operator=(SharedCache&& other) noexcept;

  int fd() const { return fd_; }  ///< -1: none

 private:
  int fd_ = -1;
};

}  // namespace trainctl
