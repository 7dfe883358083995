// Makes the bytes of npy and npz files for tests.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trainctl {

/// A npy file of one array, with this header.
inline std::string npy_of(const std::string& header, const std::string& data) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 255);
  file += static_cast<char>(header.size() >> 8);
  return file + header + data;
}
inline std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
  return npy_of("{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + ",), }\n", data);
}

struct NpzMember {
  std::string name, data;
  bool deflated = false;
};

/// The number as little-endian bytes.
inline std::string number(uint64_t value, int bytes) { return {reinterpret_cast<const char*>(&value), size_t(bytes)}; }

inline std::string deflate_raw(const std::string& data) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, data.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = uInt(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = uInt(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string zip_of(const std::vector<NpzMember>& members) {
  std::string file, directory;
  for (const NpzMember& m : members) {
    const std::string packed = m.deflated ? deflate_raw(m.data) : m.data;
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(m.data.data()), uInt(m.data.size()));
    const std::string common = number(20, 2) + number(0, 2) + number(m.deflated ? 8 : 0, 2) + number(0, 4) +
                               number(crc, 4) + number(packed.size(), 4) + number(m.data.size(), 4) +
                               number(m.name.size(), 2) + number(0, 2);
    directory += "PK\1\2" + number(20, 2) + common + std::string(10, '\0') + number(file.size(), 4) + m.name;
    file += "PK\3\4" + common + m.name + packed;
  }
  return file + directory + "PK\5\6" + number(0, 4) + number(members.size(), 2) + number(members.size(), 2) +
         number(directory.size(), 4) + number(file.size(), 4) + number(0, 2);
}

}  // namespace trainctl
