// Reads parts of a checkpoint's tensors, however they were sharded when they were written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/graph/dtype.h"
#include "engine/train/checkpoint/manifest.h"

namespace trainctl {

class PieceReader {
 public:
  /// The manifest is copied. Files are opened at first use.
  PieceReader(Manifest manifest, std::string directory);
  ~PieceReader();

  const Manifest& manifest() const;
  /// Fills `to`, contiguous and of box.shape, from the pieces that intersect the box. F32 and BF16 are converted to
  /// each other, rounded to nearest even; i32 is only read as i32. Throws EnvError if the checkpoint has no such tensor
  /// or type, or if a file differs from the manifest. check(): the box is in the tensor. Only one thread at a time may
  /// read.
  void read(std::string_view name, std::string_view slot, const Box& box, DType dtype, void* to);
  /// Bytes read from files so far, without headers. Rows are read separately, or, where the gaps between them are
  /// small, together: at most 1.07 times the bytes of the boxes that were asked for.
  int64_t bytes_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainctl
