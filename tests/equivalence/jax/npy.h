// Writes NumPy's .npy format, version 1.0: magic, a header padded to 64 bytes, the elements.
#pragma once

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

#include "engine/graph/shape.h"

namespace trainctl {

/// `type`: "<f4" or "<i4", or "|u1" of 1 byte.
inline void write_npy(const std::string& file, const char* type, const Shape& shape, const void* data,
                      int64_t element_bytes = 4) {
  std::string dims;
  for (int64_t d : shape) dims += std::to_string(d) + ",";
  std::string header = std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': (" + dims + "), }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  std::ofstream out(file, std::ios::binary);
  out.write("\x93NUMPY\x01\x00", 8);
  out.put(static_cast<char>(header.size() & 0xff)).put(static_cast<char>(header.size() >> 8));
  out << header;
  out.write(static_cast<const char*>(data), num_elements(shape) * element_bytes);
  if (!out.flush()) throw std::runtime_error("cannot write " + file);
}

}  // namespace trainctl
