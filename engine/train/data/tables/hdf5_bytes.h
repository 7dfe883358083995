// Reads the structures of an HDF5 file: numbers are little-endian, and the file determines the widths of addresses and
// lengths.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/train/files/input_file.h"

namespace trainctl {

inline constexpr uint64_t kNoHdf5Address = ~uint64_t{0};

/// Throws an EnvError that begins with the path of the file.
[[noreturn]] inline void fail_hdf5(const std::string& path, const std::string& what) {
  throw EnvError(path + " is a damaged HDF5 file: " + what);
}

/// A part of the file, read from its beginning to its end. It fails where it is too short.
class Hdf5Cursor {
 public:
  Hdf5Cursor(std::span<const uint8_t> bytes, std::string path) : bytes_(bytes), path_(std::move(path)) {}

  size_t left() const { return bytes_.size() - at_; }
  size_t at() const { return at_; }
  const std::string& path() const { return path_; }
  [[noreturn]] void fail(const std::string& what) const { fail_hdf5(path_, what); }

  std::span<const uint8_t> take(size_t count) {
    if (count > left()) fail("a structure is truncated");
    const auto part = bytes_.subspan(at_, count);
    at_ += count;
    return part;
  }
  void skip(size_t count) { (void)take(count); }
  /// Skips to a multiple of 8 bytes from the beginning.
  void align() { skip((8 - at_ % 8) % 8); }
  uint64_t number(size_t width) {
    if (width > sizeof(uint64_t)) fail("a number has too many bytes");
    uint64_t value = 0;
    const auto part = take(width);
    std::memcpy(&value, part.data(), width);
    return value;
  }
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  /// A text that ends with a zero byte, which is read too.
  std::string text() {
    std::string value;
    for (char c = static_cast<char>(u8()); c != 0; c = static_cast<char>(u8())) value += c;
    return value;
  }
  void expect(std::string_view signature) {
    const auto part = take(signature.size());
    if (std::memcmp(part.data(), signature.data(), signature.size()) != 0)
      fail("expected the structure " + std::string(signature));
  }

 private:
  std::span<const uint8_t> bytes_;
  std::string path_;
  size_t at_ = 0;
};

/// The file, and what its superblock determines.
struct Hdf5Bytes {
  explicit Hdf5Bytes(const std::string& address) : file(address) {}

  InputFile file;
  uint64_t base = 0;  ///< the place of the superblock, which is added to all addresses
  size_t address_bytes = 8, length_bytes = 8;

  /// Address as a place in the file; kNoHdf5Address if it is undefined.
  uint64_t address(Hdf5Cursor& from) const {
    const uint64_t value = from.number(address_bytes);
    const uint64_t undefined = address_bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * address_bytes)) - 1;
    return value == undefined ? kNoHdf5Address : value + base;
  }
  uint64_t length(Hdf5Cursor& from) const { return from.number(length_bytes); }

  std::vector<uint8_t> read(uint64_t at, uint64_t count) const {
    const auto size = static_cast<uint64_t>(file.bytes());
    if (at > size || count > size - at) fail_hdf5(file.path(), "a structure is outside of the file");
    std::vector<uint8_t> bytes(static_cast<size_t>(count));
    if (count > 0) file.read(static_cast<int64_t>(at), bytes);
    return bytes;
  }
  /// Up to `most` bytes: fewer at the end of the file.
  std::vector<uint8_t> read_up_to(uint64_t at, uint64_t most) const {
    const auto size = static_cast<uint64_t>(file.bytes());
    if (at >= size) fail_hdf5(file.path(), "a structure is outside of the file");
    return read(at, std::min(most, size - at));
  }
};

}  // namespace trainctl
