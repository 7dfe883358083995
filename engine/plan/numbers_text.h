// Numbers as the bytes of a string: keys of tables, and descriptions that are only compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainctl {

inline void put_number(std::string& out, int64_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}
inline void put_number(std::string& out, double number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}
inline void put_number(std::string& out, int number) { put_number(out, int64_t{number}); }
inline void put_number(std::string& out, bool number) { put_number(out, int64_t{number}); }

/// The count of the numbers comes first.
template <class Number>
void put_numbers(std::string& out, const std::vector<Number>& numbers) {
  put_number(out, static_cast<int64_t>(numbers.size()));
  for (Number number : numbers) put_number(out, number);
}

}  // namespace trainctl
