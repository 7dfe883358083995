// Memory in which the ranks of a host cache samples for each other (engine/train/data/cached_set.h): an unnamed file
// that they inherit. It is empty until a rank allocates space in it, and freed when the last process that uses it ends.
#pragma once

namespace trainctl {

class SharedCache {
 public:
  SharedCache() = default;
  /// Throws EnvError.
  static SharedCache create();
  ~SharedCache();
  SharedCache(SharedCache&& other) noexcept;
  SharedCache& operator=(SharedCache&& other) noexcept;

  int fd() const { return fd_; }  ///< -1: none

 private:
  int fd_ = -1;
};

}  // namespace trainctl
