// The part of a checkpoint that one rank writes: the bytes of its safetensors file, as they are laid out in memory
// before they are on disk. The head is the same for every save; the data are copied from the arena.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/program.h"
#include "engine/runtime/state_copy.h"

namespace trainctl {

/// The share of a rank's state that an image has.
enum class StateShare : uint8_t {
  own,      ///< the part that checkpoints take from this rank: all ranks' images together are the state, once
  weights,  ///< the weights and running statistics of `own`
  local     ///< all that the rank has; other ranks may have the same
};

class StateImage {
 public:
  explicit StateImage(const Program& program, StateShare share = StateShare::own);

  int64_t bytes() const { return bytes_; }
  const std::string& head() const { return head_; }
  const std::vector<StateCopy>& copies() const { return copies_; }
  /// True if other ranks have everything that this rank has, so that it writes no file.
  bool empty() const { return copies_.empty(); }

 private:
  std::string head_;
  std::vector<StateCopy> copies_;
  int64_t bytes_ = 0;
};

/// Equals StateImage(program).bytes(), without making the image. It is 0 if other ranks have everything that this rank
/// has.
int64_t state_image_bytes(const Program& program);

}  // namespace trainctl
