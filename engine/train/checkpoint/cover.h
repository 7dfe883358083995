// Selects pieces of images that together are the state exactly once; replicas store parts of it several times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/planning/planned_job.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {

struct Cover {
  std::vector<std::vector<std::string>> pieces;  ///< by image: the names of the entries that are taken
  int64_t bytes = 0;                             ///< bytes of all pieces
  std::string missing;                           ///< "layer3.weight:momentum", which no image has whole; empty: nothing
};

/// `images` has, for each image, its entries (state_image.h). Large pieces are taken first; among equal pieces, the one
/// of the first image. Pieces that overlap only in part count as missing, because all ranks cut a state in the same
/// way.
Cover cover_state(const PlannedJob& job, const std::vector<std::vector<SafetensorsEntry>>& images);

/// Makes an image with only these pieces of another one. Throws EnvError if that is not an image.
std::vector<std::byte> image_of(std::span<const std::byte> image, const std::vector<std::string>& pieces);

}  // namespace trainctl
