// Reads a file from its start to its end, and inflates it if it is compressed by gzip or zstd.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trainctl {

class InflatedFile {
 public:
  /// Opens a file; "-" is stdin. Throws EnvError if it cannot be opened.
  explicit InflatedFile(const std::string& path);
  ~InflatedFile();

  /// Returns the bytes read; 0 only at the end. Throws EnvError if the file cannot be read, is damaged or is truncated.
  size_t read(std::span<char> to);
  const std::string& name() const { return name_; }

 private:
  struct Gzip;
  struct Zstd;
  std::string name_;
  std::unique_ptr<Gzip> gzip_;  ///< also reads files that are not compressed
  std::unique_ptr<Zstd> zstd_;
};

/// True for names that end in .gz or .zst: such a file cannot be read from its middle.
bool is_compressed_name(const std::string& path);
/// Returns the whole content. Throws the errors of InflatedFile, and EnvError if the file inflates to more than
/// may_inflate() permits.
std::string read_inflated(const std::string& path, int64_t packed_bytes);

/// Inflates data whose inflated size is known to be `bytes`. Throws EnvError, which begins with `name`, if the size is
/// another one.
std::vector<uint8_t> inflated_gzip(std::span<const uint8_t> packed, int64_t bytes, const std::string& name);
std::vector<uint8_t> inflated_zstd(std::span<const uint8_t> packed, int64_t bytes, const std::string& name);

}  // namespace trainctl
