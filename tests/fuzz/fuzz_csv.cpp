// libFuzzer target: any text is split into rows of CSV that together make up the text. The values of a row, quoted and
// joined again, are the same values.
#include <cstdlib>

#include "engine/train/data/sources/csv_text.h"

namespace {

using namespace trainctl;

std::string quoted(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

void check_row(std::string_view row, char delimiter) {
  std::string text(row);
  std::vector<std::string_view> values;
  if (!split_row(text, delimiter, values).empty()) return;
  std::string again;
  for (const std::string_view value : values) again += (again.empty() ? "" : std::string(1, delimiter)) + quoted(value);
  if (row_bytes(again, delimiter, true) != again.size()) abort();
  std::vector<std::string_view> same;
  std::string copy = again + "\r\n";
  if (!split_row(copy, delimiter, same).empty() || same != values) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const char delimiter = data[0] == '"' || data[0] == '\n' || data[0] == '\r' ? ',' : static_cast<char>(data[0]);
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  while (!rest.empty()) {
    const auto bytes = row_bytes(rest, delimiter, true);
    if (!bytes) break;  // an open quote
    if (*bytes == 0 || *bytes > rest.size()) abort();
    // If a row is known to end, more text behind it changes nothing; before its end it is not known.
    if (rest[*bytes - 1] == '\n' && row_bytes(rest.substr(0, *bytes), delimiter, false) != bytes) abort();
    if (row_bytes(rest.substr(0, *bytes - 1), delimiter, false)) abort();
    check_row(rest.substr(0, *bytes), delimiter);
    rest.remove_prefix(*bytes);
  }
  return 0;
}
