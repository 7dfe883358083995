// Finds the files of each sample in a tar file. The index is built from its headers, or stored as NAME.tar.idx.
//
//   index      := "tctl.tar" version tar_bytes tar_seconds samples columns text_bytes  extensions place* bytes*
//                 8 characters, then numbers of 64 bits, little-endian; version is 1
//   extensions := (characters 0){columns} zeros          text_bytes in all, a multiple of 8
//   place      := u64: block of the data << 16 | blocks of its headers        samples x columns; 0: no such file
//   bytes      := u32: of the data                                            samples x columns
//
// tar_bytes and tar_seconds (when it was last changed) identify the tar file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/train/data/sources/tar_reader.h"

namespace trainctl {

/// TarStamp::seconds of an object in a store.
inline constexpr int64_t kUnknownTime = -1;

struct TarStamp {
  int64_t bytes = 0, seconds = 0;
  bool operator==(const TarStamp&) const = default;
};
/// Throws EnvError if there is no such file.
TarStamp tar_stamp(const std::string& tar);

/// One file of a sample, in the tar file.
struct TarPart {
  int64_t begin = 0;  ///< start of its headers
  int64_t data_at = 0, bytes = 0;
};

/// A view of bytes that are owned elsewhere.
class TarIndex {
 public:
  /// EnvError (`file` is the index) if the bytes are not an index, or belong to a tar file other than `stamp`'s.
  TarIndex(std::span<const uint8_t> bytes, const TarStamp& stamp, std::string file);

  int64_t samples() const { return samples_; }
  const std::vector<std::string>& extensions() const { return extensions_; }  ///< sorted
  /// Returns nothing if the sample has no such file. Throws EnvError if the place is not in the tar file.
  std::optional<TarPart> part(int64_t sample, size_t extension) const;

 private:
  [[noreturn]] void fail(const std::string& what) const;
  int64_t word(size_t at) const;

  std::span<const uint8_t> bytes_;
  std::string file_;
  int64_t tar_bytes_ = 0, samples_ = 0;
  std::vector<std::string> extensions_;
  size_t places_at_ = 0, sizes_at_ = 0;
};

/// The bytes of the index. Throws EnvError if the tar file is damaged, or its files are not samples.
std::vector<uint8_t> build_tar_index(TarReader reader, const TarStamp& stamp, const std::string& tar);

/// shard.tar -> shard.tar.idx
std::string tar_index_path(const std::string& tar);
/// Reads the headers of `tar`, and writes its index: whole or not at all, in place of one that is there. Returns the
/// number of samples. Throws EnvError.
int64_t write_tar_index(const std::string& tar, const std::string& out);

/// 000017.mask.png -> {000017, mask.png}; no extension if the file belongs to no sample.
struct TarName {
  std::string stem, extension;
};
TarName split_tar_name(const std::string& name);

}  // namespace trainctl
