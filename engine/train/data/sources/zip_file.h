// A zip file, such as NumPy writes with savez. libzip reads its directory, inflates members and verifies checksums.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/train/files/input_file.h"

namespace trainctl {

struct ZipMember {
  std::string name;
  bool is_deflated = false;  ///< otherwise its bytes are stored as they are
  int64_t packed_bytes = 0, bytes = 0;
  uint64_t index = 0;  ///< in the directory
};

/// Used by one thread. Every defect is an EnvError that names the file.
class ZipFile {
 public:
  /// Reads the directory. `file` must outlive it. EnvError also if a member is encrypted, or neither stored nor
  /// deflated.
  explicit ZipFile(const InputFile& file);
  ~ZipFile();
  ZipFile(const ZipFile&) = delete;
  ZipFile& operator=(const ZipFile&) = delete;

  const std::vector<ZipMember>& members() const { return members_; }
  /// The offset in the file of the bytes of a stored member.
  int64_t data_at(const ZipMember& member);
  /// The bytes of a member. Throws EnvError if their number or checksum is not that of the directory, or if they are
  /// more than may inflate (inflation.h); the latter before memory is allocated.
  std::vector<uint8_t> read(const ZipMember& member);
  /// Throws the same errors as read(), but keeps no more than a few megabytes in memory.
  void verify(const ZipMember& member);

 private:
  struct Archive;

  /// Reads a member to its end, into `buffer`, which starts again from its beginning when it is full.
  void read_to_end(const ZipMember& member, std::span<uint8_t> buffer);

  const InputFile& file_;
  std::unique_ptr<Archive> archive_;
  std::vector<ZipMember> members_;
};

/// Throws EnvError if the deflated members among these inflate to more than may_inflate() permits (inflation.h) for a
/// file of `file_bytes` bytes; all of them will be in memory together. In a malicious file several members may share
/// the same data.
void require_may_inflate(std::span<const ZipMember> members, int64_t file_bytes, const std::string& file);

}  // namespace trainctl
