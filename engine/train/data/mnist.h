// A folder of IDX files with MNIST's names, raw or .gz:
//   train-images-idx3-ubyte  u8 [n, h, w]      train-labels-idx1-ubyte  u8 [n]       split "train"
//   t10k-images-idx3-ubyte                     t10k-labels-idx1-ubyte                split "test"
// Raw samples are [h, w, 1], 0 to 255.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/train/data/idx.h"

namespace trainctl {

class MnistSet {
 public:
  /// Throws SpecError (dataset.path) if files are missing, with the names looked for, if they are broken, or if they do
  /// not belong together.
  explicit MnistSet(const std::string& folder, const std::string& split = "train");

  int64_t size() const { return images_.header.dims[0]; }
  Shape sample_shape() const { return {images_.header.dims[1], images_.header.dims[2], 1}; }
  std::span<const uint8_t> image(int64_t sample) const {
    const auto pixels = static_cast<size_t>(images_.header.dims[1] * images_.header.dims[2]);
    return std::span(images_.body).subspan(static_cast<size_t>(sample) * pixels, pixels);
  }
  int label(int64_t sample) const { return labels_.body[static_cast<size_t>(sample)]; }

 private:
  IdxArray images_, labels_;
};

struct MnistHeader {
  int64_t size = 0;
  Shape sample_shape;  ///< [h, w, 1]
};

/// From the first bytes of both files, and their lengths. Throws SpecError (dataset.path) if a file is missing or cut
/// off, a header is damaged, or the numbers of labels and images differ.
MnistHeader read_mnist_header(const std::string& folder, const std::string& split = "train");

/// Only the labels. Throws the same errors as MnistSet.
std::vector<uint8_t> read_mnist_labels(const std::string& folder, const std::string& split = "train");
/// Inflates files in .gz, whose checksum is at their end. Throws SpecError (dataset.path) if one is damaged.
void check_mnist_files(const std::string& folder, const std::string& split = "train");

}  // namespace trainctl
