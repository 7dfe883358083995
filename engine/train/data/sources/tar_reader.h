// The members of a tar file, from their headers (POSIX.1-2001 pax, ustar, and GNU's long names and large numbers).
//
//   file    := member* zeros{2 blocks} zeros*             a block is 512 bytes
//   member  := (header of x or L, its data)* header data  data is padded to whole blocks
//   header  := name[100] mode[8] uid[8] gid[8] size[12] mtime[12] checksum[8] type link[100]
//              "ustar" … prefix[155]                      numbers are octal, or base 256 if the first bit is set
//   x       := records "length key=value\n" for the next member: path and size count; g is for all, and is not needed
//   L       := the name of the next member
//
// The reader takes bytes from a function, so that it can be fuzzed. Every defect is an EnvError with the file and byte.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace trainctl {

inline constexpr int64_t kTarBlock = 512;

struct TarMember {
  std::string name;
  bool is_file = false;  ///< else a folder
  int64_t begin = 0;     ///< start of its first header
  int64_t data_at = 0;
  int64_t bytes = 0;  ///< size of its data
};

class TarReader {
 public:
  /// Fills the span with the bytes of the file from `at` on. It is called only for bytes that the file has.
  using Read = std::function<void(int64_t at, std::span<uint8_t> to)>;

  TarReader(Read read, int64_t file_bytes, std::string file, int64_t begin = 0);
  /// Reads the next member. Returns false at the end of the archive.
  bool next(TarMember& member);

 private:
  [[noreturn]] void fail(int64_t at, const std::string& what) const;
  std::span<const uint8_t> block(int64_t at);
  std::string read_text(int64_t at, int64_t bytes);
  void read_pax(int64_t at, int64_t bytes, TarMember& member, int64_t& size);
  void refuse_gzip();
  void check_checksum(std::span<const uint8_t> header, int64_t at) const;
  int64_t number(std::span<const uint8_t> field, int64_t at, const char* what) const;
  void check_end(int64_t at);

  Read read_;
  int64_t file_bytes_;
  std::string file_;
  int64_t at_;
  std::vector<uint8_t> window_;  ///< headers of small members are near each other
  int64_t window_at_ = 0;
};

}  // namespace trainctl
