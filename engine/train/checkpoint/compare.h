// Compares the tensors of two checkpoints, or of two safetensors files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/train/checkpoint/tiling.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {

struct NamedTensor {
  std::string key;  ///< "fc1.weight:weight"; of a file without slots, ":weight" is added to its names
  StoredType type = StoredType::f32;
  Shape shape;
};

/// Gives access to whole tensors, however they are stored. Only one thread at a time may use it.
class WholeTensors {
 public:
  virtual ~WholeTensors() = default;
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  /// Reads the elements of tensor `index` from element `first` on, in the stored type. `box` describes the same
  /// elements. `to` has room for them.
  virtual void read(size_t index, const Box& box, int64_t first, std::span<uint8_t> to) = 0;

 protected:
  std::vector<NamedTensor> tensors_;
};

/// Opens the tensors of a checkpoint's directory, or of a safetensors file. Throws EnvError.
std::unique_ptr<WholeTensors> open_tensors(const std::string& path);

struct TensorDifference {
  std::string key;
  StoredType type_a = StoredType::f32, type_b = StoredType::f32;
  Shape shape;
  int64_t elements = 0;
  int64_t differing = 0;  ///< elements that differ: in any bit if the types are equal, otherwise in value
  /// Largest |a - b|; infinite if just one of them is not finite, or if the type has no values (those of 4 and 6 bits).
  double max_abs = 0;
  double max_rel = 0;  ///< largest |a - b| / max(|a|, |b|)
  int64_t at = -1;     ///< the element of max_abs, in row-major order

  Shape place() const;  ///< the indices of `at`
  bool is_different() const { return differing > 0 || type_a != type_b; }
};

struct Comparison {
  std::vector<NamedTensor> missing;  ///< only in A
  std::vector<NamedTensor> extra;    ///< only in B
  std::vector<std::pair<NamedTensor, NamedTensor>> other_shape;
  std::vector<TensorDifference> compared;  ///< tensors with one shape, in the order of A

  size_t num_equal() const;
  size_t num_tensors() const { return missing.size() + extra.size() + other_shape.size() + compared.size(); }
  bool equal() const { return num_equal() == num_tensors(); }
};

/// Compares only tensors of these `slots`; if `slots` is empty, all tensors.
Comparison compare(WholeTensors& a, WholeTensors& b, const std::vector<std::string>& slots = {});

}  // namespace trainctl
