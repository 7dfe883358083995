// Makes small checkpoints with known contents, cut into boxes at random.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/train/checkpoint/checkpoint_directory.h"
#include "engine/train/checkpoint/manifest.h"

namespace trainctl {

struct SampleTensor {
  std::string name, slot;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::vector<Box>> boxes;  ///< boxes in each file
};

/// The bytes of a box of the tensor. Each element is a small integer that depends on the tensor and the element's
/// index, and that every type represents exactly.
std::vector<uint8_t> sample_bytes(const SampleTensor& tensor, const Box& box, DType dtype);

/// Makes boxes that tile the shape: the shape is cut in two, then one of its parts, and so on.
std::vector<Box> random_tiling(const Shape& shape, int pieces, std::mt19937& random);
/// A random box inside the shape.
Box random_box(const Shape& shape, std::mt19937& random);

/// A few tensors of all types and 0 to 4 dims, in `files` files.
std::vector<SampleTensor> sample_tensors(int files, std::mt19937& random);
/// Weights of two layers in two files: 200 bytes or so.
std::vector<SampleTensor> two_small_tensors();

/// Writes the tensors' files there, and returns the manifest of them all.
Manifest write_sample_files(const std::string& folder, const std::vector<SampleTensor>& tensors, int64_t step,
                            int attempt, Disk& disk = real_disk());
/// Saves a checkpoint: begins a step, writes its files and commits it. Returns the path.
std::string save_sample(CheckpointDirectory& directory, const std::vector<SampleTensor>& tensors, int64_t step,
                        int attempt, Disk& disk = real_disk());

}  // namespace trainctl
