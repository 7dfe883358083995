// Stores the names of a set's images in little memory: 4 bytes and the name for each image, and each folder once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

class ImageNames {
 public:
  /// Begins a folder: images that are added from now on are in this folder and of this class.
  void begin_folder(std::string folder, int32_t label);
  /// Throws EnvError for more than 4 GiB of names in one folder.
  void add(std::string_view name);
  void shrink_to_fit();

  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  std::string path(int64_t image) const;
  int32_t label(int64_t image) const { return run_of(image).label; }
  int64_t memory_bytes() const;

 private:
  /// Consecutive images of one folder.
  struct Run {
    std::string folder;
    int64_t first = 0;      ///< image
    uint64_t names_at = 0;  ///< in names_
    int32_t label = 0;
  };
  const Run& run_of(int64_t image) const;

  std::vector<Run> runs_;
  std::string names_;
  std::vector<uint32_t> ends_;  ///< end of each name, from its run's names_at
};

/// True if the name is that of an image: "photos/1.JPG", not photos/1.txt. Throws SpecError (dataset.path) for an image
/// that trainctl does not decode.
bool is_image_name(std::string_view name, std::string_view folder);

}  // namespace trainctl
