// Builds tar files byte by byte, so that tests can make any byte wrong.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "tests/train/scratch_folder.h"

namespace trainctl {

inline void set_tar_checksum(ByteVector& header) {
  std::memset(header.data() + 148, ' ', 8);
  int sum = 0;
  for (int i = 0; i < 512; ++i) sum += header[size_t(i)];
  std::memcpy(header.data() + 148, fmt::format("{:06o}", sum).c_str(), 7);
}

inline ByteVector tar_header(const std::string& name, int64_t size, char type = '0') {
  ByteVector header(512);
  std::memcpy(header.data(), name.data(), name.size());
  std::memcpy(header.data() + 100, "0000644", 7);
  std::memcpy(header.data() + 124, fmt::format("{:011o}", size).c_str(), 11);
  header[156] = uint8_t(type);
  std::memcpy(header.data() + 257, "ustar\00000", 8);
  set_tar_checksum(header);
  return header;
}

inline ByteVector operator+(ByteVector a, const ByteVector& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Header, data and padding.
inline ByteVector tar_member(const std::string& name, const std::string& data, char type = '0') {
  ByteVector bytes = tar_header(name, int64_t(data.size()), type) + ByteVector(data.begin(), data.end());
  bytes.resize((bytes.size() + 511) / 512 * 512);
  return bytes;
}

inline ByteVector tar_end() { return ByteVector(1024); }

/// A shard of two samples, each an image and a label: 000 has the label 7, 001 has -2.
inline const ByteVector kTwoSamples = tar_member("./a/000.jpg", "JPEG0") + tar_member("./a/000.cls", "7\n") +
                                      tar_member("./a/001.png", "PNG1") + tar_member("./a/001.cls", "-2") + tar_end();

}  // namespace trainctl
