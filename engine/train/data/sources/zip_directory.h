// The members of a zip file, such as NumPy writes with savez (PKWARE's APPNOTE 6.3; zip64 too).
//
//   file      := (local data)* directory end          numbers are little-endian
//   local     := "PK\3\4" … name_bytes[2] at 26, extra_bytes[2] at 28, name, extra: 30 bytes and more
//   directory := ("PK\1\2" flags[2] at 8, method[2] at 10, crc[4] at 16, packed[4], bytes[4], name_bytes[2] at 28,
//                 extra_bytes[2], comment_bytes[2], local_at[4] at 42, name, extra, comment)*        46 bytes and more
//   end       := ("PK\6\6" … zip64, "PK\6\7" …)? "PK\5\6" … entries[2] at 10, directory_bytes[4], directory_at[4],
//   comment
//
// The parsers take bytes, so that they can be fuzzed. Every defect is an EnvError with the file and byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trainctl {

struct ZipEntry {
  std::string name;
  bool is_deflated = false;  ///< else stored as it is
  uint32_t crc = 0;
  int64_t packed_bytes = 0, bytes = 0;
  int64_t local_at = 0;
};

struct ZipDirectory {
  int64_t at = 0, bytes = 0, entries = 0;
};

/// More than the end of a directory takes, whose comment may have 65,535 bytes.
inline constexpr int64_t kZipTailBytes = 66 << 10;
inline constexpr int64_t kZipLocalBytes = 30;

/// `tail`: the last kZipTailBytes of the file, or all of it.
ZipDirectory find_zip_directory(std::span<const uint8_t> tail, int64_t file_bytes, const std::string& file);
std::vector<ZipEntry> parse_zip_directory(std::span<const uint8_t> bytes, const ZipDirectory& directory,
                                          const std::string& file);
/// Returns the offset of the data of an entry. `local`: the kZipLocalBytes at its local_at.
int64_t zip_data_at(std::span<const uint8_t> local, const ZipEntry& entry, int64_t file_bytes, const std::string& file);

/// EnvError if `found`, the CRC-32 of the bytes of a stored entry, is not that of the directory.
void require_zip_checksum(const ZipEntry& entry, uint32_t found, const std::string& file);

/// EnvError if the deflated ones of these entries of a file of `file_bytes`, all of which will be held in memory, are more
/// than may inflate (inflation.h). Entries of a hostile file may share their data.
void require_may_inflate(std::span<const ZipEntry> entries, int64_t file_bytes, const std::string& file);

/// The bytes of a deflated entry. EnvError if they are broken, not `entry.bytes` with its checksum, or more than may
/// inflate (inflation.h); the last before memory is taken.
std::vector<uint8_t> inflate_zip_entry(std::span<const uint8_t> packed, const ZipEntry& entry, const std::string& file);

}  // namespace trainctl
